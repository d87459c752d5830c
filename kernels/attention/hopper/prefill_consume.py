"""Four warps that own half of a tile's rows: scores, running softmax, sums of values."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.attention.hopper.prefill_schedule import told
from kernels.attention.hopper.prefill_store import add_parts, store_part, store_rows


@gluon.jit
def soften(s, b_max, b_sum, scale_log2):
    """One step of the running softmax: (weights, new maximum, new sum, factor of what was)."""
    b_top = gl.maximum(b_max, gl.max(s, 1) * scale_log2)
    b_p = gl.exp2(s * scale_log2 - b_top[:, None])
    b_shrink = gl.exp2(b_max - b_top)
    return b_p, b_top, b_sum * b_shrink + gl.sum(b_p, 1), b_shrink


@gluon.jit
def visible(s, start, b_position, end, S_LAYOUT: gl.constexpr):
    i_n = start + gl.arange(0, s.shape[1], gl.SliceLayout(0, S_LAYOUT))
    mask = (i_n[None, :] <= b_position[:, None]) & (i_n < end)[None, :]
    return gl.where(mask, s, float("-inf"))


@gluon.jit
def begin_scores(q, k, S_LAYOUT: gl.constexpr):
    zeros = gl.full([q.shape[0], k.shape[0]], 0.0, gl.float32, S_LAYOUT)
    return warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def attend(
    q,
    stages,
    state,
    count,
    begin,
    steps_end,
    b_position,
    end,
    scale_log2,
    NUM_STAGES: gl.constexpr,
    S_LAYOUT: gl.constexpr,
    O_LAYOUT: gl.constexpr,
    MASKED: gl.constexpr,
):
    """Steps begin to steps_end: a step's scores are made while the former's values are added.

    state: the former step's weights, maximum, sum, output so far. count: steps taken so far.
    """
    shared_k, shared_v, k_full, k_empty, v_full, v_empty = stages
    b_p, b_max, b_sum, b_acc = state
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    BLOCK_N: gl.constexpr = shared_k.shape[1]
    for step in range(begin, steps_end):
        stage = count % NUM_STAGES
        former = (count - 1) % NUM_STAGES
        mbarrier.wait(k_full.index(stage), (count // NUM_STAGES) & 1)
        s = begin_scores(q, shared_k.index(stage), S_LAYOUT)
        mbarrier.wait(v_full.index(former), ((count - 1) // NUM_STAGES) & 1)
        b_acc = warpgroup_mma(b_p, shared_v.index(former), b_acc, is_async=True)
        s = warpgroup_mma_wait(1, deps=(s,))
        mbarrier.arrive(k_empty.index(stage))
        if MASKED:
            s = visible(s, step * BLOCK_N, b_position, end, S_LAYOUT)
        b_w, b_max, b_sum, b_shrink = soften(s, b_max, b_sum, scale_log2)
        b_acc, b_p = warpgroup_mma_wait(0, deps=(b_acc, b_p))
        mbarrier.arrive(v_empty.index(former))
        b_acc = b_acc * gl.convert_layout(b_shrink, gl.SliceLayout(1, O_LAYOUT))[:, None]
        b_p = gl.convert_layout(b_w.to(b_p.dtype), P_LAYOUT)
        count += 1
    return (b_p, b_max, b_sum, b_acc), count


@gluon.jit
def skip_steps(stages, count, num_steps, NUM_STAGES: gl.constexpr):
    """For a consumer that has no rows of the tile: its half of what frees the stages."""
    _, _, k_full, k_empty, v_full, v_empty = stages
    for i in range(count, count + num_steps):
        stage = i % NUM_STAGES
        mbarrier.wait(k_full.index(stage), (i // NUM_STAGES) & 1)
        mbarrier.arrive(k_empty.index(stage))
        mbarrier.wait(v_full.index(stage), (i // NUM_STAGES) & 1)
        mbarrier.arrive(v_empty.index(stage))


@gluon.jit
def attend_rows(
    q,
    q_empty,
    stages,
    count,
    position,
    begin,
    end,
    scale_log2,
    GROUP: gl.constexpr,
    NUM_STAGES: gl.constexpr,
):
    """Rows of q, the first of position, over positions begin to end: (output, its log2 sums)."""
    shared_k, shared_v, k_full, k_empty, v_full, v_empty = stages
    ROWS: gl.constexpr = q.shape[0]
    D: gl.constexpr = q.shape[1]
    BLOCK_N: gl.constexpr = shared_k.shape[1]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    b_position = position + gl.arange(0, ROWS, ROW) // GROUP
    b_max = gl.full([ROWS], float("-inf"), gl.float32, ROW)
    b_sum = gl.full([ROWS], 0.0, gl.float32, ROW)
    b_acc = gl.full([ROWS, D], 0.0, gl.float32, O_LAYOUT)
    # Steps that every row sees whole need no mask.
    first = begin // BLOCK_N
    steps = (end + BLOCK_N - 1) // BLOCK_N
    seen = gl.minimum(gl.maximum((position + 1) // BLOCK_N, first + 1), steps)

    stage = count % NUM_STAGES
    mbarrier.wait(k_full.index(stage), (count // NUM_STAGES) & 1)
    s = begin_scores(q, shared_k.index(stage), S_LAYOUT)
    s = warpgroup_mma_wait(0, deps=(s,))
    mbarrier.arrive(k_empty.index(stage))
    s = visible(s, begin, b_position, end, S_LAYOUT)
    b_w, b_max, b_sum, _ = soften(s, b_max, b_sum, scale_log2)
    b_p = gl.convert_layout(b_w.to(q.dtype), P_LAYOUT)
    state = (b_p, b_max, b_sum, b_acc)
    count += 1
    state, count = attend(
        q,
        stages,
        state,
        count,
        first + 1,
        seen,
        b_position,
        end,
        scale_log2,
        NUM_STAGES,
        S_LAYOUT,
        O_LAYOUT,
        False,
    )
    state, count = attend(
        q,
        stages,
        state,
        count,
        seen,
        steps,
        b_position,
        end,
        scale_log2,
        NUM_STAGES,
        S_LAYOUT,
        O_LAYOUT,
        True,
    )
    b_p, b_max, b_sum, b_acc = state
    mbarrier.arrive(q_empty)
    stage = (count - 1) % NUM_STAGES
    mbarrier.wait(v_full.index(stage), ((count - 1) // NUM_STAGES) & 1)
    b_acc = warpgroup_mma(b_p, shared_v.index(stage), b_acc, is_async=True)
    b_acc, b_p = warpgroup_mma_wait(0, deps=(b_acc, b_p))
    mbarrier.arrive(v_empty.index(stage))
    b_acc = b_acc / gl.convert_layout(b_sum, gl.SliceLayout(1, O_LAYOUT))[:, None]
    return b_acc, b_max + gl.log2(b_sum)


@gluon.jit
def consume(
    which: gl.constexpr,
    out,
    parts,
    scale_log2,
    queries,
    stages,
    shape: gl.constexpr,
):
    """Rows which · ROWS on of each tile."""
    shared_q, q_full, q_empty, slots = queries
    HKV: gl.constexpr = shape[0]
    GROUP: gl.constexpr = shape[1]
    MIN_SPLIT: gl.constexpr = shape[4]
    ROWS: gl.constexpr = shared_q.shape[1]
    D: gl.constexpr = shared_q.shape[2]
    BLOCK_N: gl.constexpr = stages[0].shape[1]
    NUM_STAGES: gl.constexpr = stages[0].shape[0]
    QUERY_STAGES: gl.constexpr = shared_q.shape[0] // 2
    count = 0
    number = 0
    mbarrier.wait(q_full.index(0), 0)
    i_h = told(slots, 0, 0)
    while i_h < HKV:
        q_stage = number % QUERY_STAGES
        position = told(slots, q_stage, 1) + which * (ROWS // GROUP)
        begin = told(slots, q_stage, 2)
        end = told(slots, q_stage, 3)
        token = told(slots, q_stage, 4) + which * (ROWS // GROUP)
        num_rows = told(slots, q_stage, 5) - which * ROWS
        slot = told(slots, q_stage, 6)
        i_part = told(slots, q_stage, 7)
        num_parts = told(slots, q_stage, 8)
        num_steps = (end - begin + BLOCK_N - 1) // BLOCK_N
        if num_rows > 0:
            b_out, b_log = attend_rows(
                shared_q.index(2 * q_stage + which),
                q_empty.index(q_stage),
                stages,
                count,
                position,
                begin,
                end,
                scale_log2,
                GROUP,
                NUM_STAGES,
            )
            if MIN_SPLIT == 0:
                store_rows(out, b_out, token, num_rows, i_h, HKV, GROUP)
            else:
                place = (slot * HKV + i_h) * 2 + which
                if num_parts == 1:
                    store_rows(out, b_out, token, num_rows, i_h, HKV, GROUP)
                elif store_part(parts, place, b_out, b_log, i_part, num_parts, 2 * HKV):
                    b_all = add_parts(parts, place, num_parts, 2 * HKV, ROWS, D)
                    store_rows(out, b_all, token, num_rows, i_h, HKV, GROUP)
                    gl.store(parts[2] + place, 0)
        else:
            skip_steps(stages, count, num_steps, NUM_STAGES)
            mbarrier.arrive(q_empty.index(q_stage))
        count += num_steps
        number += 1
        q_stage = number % QUERY_STAGES
        mbarrier.wait(q_full.index(q_stage), (number // QUERY_STAGES) & 1)
        i_h = told(slots, q_stage, 0)
