"""Four warps that own half of a tile's rows: scores, running softmax, sums of values."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.attention.hopper.prefill_schedule import find_rows, find_sequence, told_item


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
def store_rows(
    out, b_acc, first_row, first_token, num_queries, i_h, HKV: gl.constexpr, GROUP: gl.constexpr
):
    """b_acc [ROWS, D] to out [T, HQ, D], rows of queries that exist."""
    D: gl.constexpr = b_acc.shape[1]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    b_out = gl.convert_layout(b_acc.to(out.dtype.element_ty), layout)
    i_r = first_row + gl.arange(0, b_acc.shape[0], gl.SliceLayout(1, layout))
    i_d = gl.arange(0, D, gl.SliceLayout(0, layout))
    token = (first_token + i_r // GROUP).to(gl.int64)
    offsets = (token * (HKV * GROUP) + i_h * GROUP + i_r % GROUP) * D
    m_r = (i_r // GROUP < num_queries)[:, None]
    gl.store(out + offsets[:, None] + i_d[None, :], b_out, mask=m_r)


@gluon.jit
def consume(
    which: gl.constexpr,
    out,
    scale_log2,
    read,
    queries,
    stages,
    HKV: gl.constexpr,
    GROUP: gl.constexpr,
    D: gl.constexpr,
    ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    NUM_STAGES: gl.constexpr,
):
    """Rows which · ROWS on of each tile."""
    query_start, context_lens, total = read
    shared_q, q_full, q_empty, slot = queries
    shared_k, shared_v, k_full, k_empty, v_full, v_empty = stages
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    QUERY_STAGES: gl.constexpr = shared_q.shape[0] // 2
    i_seq = 0
    before = 0
    count = 0
    number = 0
    mbarrier.wait(q_full.index(0), 0)
    item = told_item(slot.index(0))
    while item < total:
        q_stage = number % QUERY_STAGES
        q = shared_q.index(2 * q_stage + which)
        tile = item // HKV
        i_seq, before = find_sequence(tile, query_start, i_seq, before, GROUP, 2 * ROWS)
        first_row, num_queries, prefix, end = find_rows(
            tile, query_start, context_lens, i_seq, before, GROUP, 2 * ROWS
        )
        first_row += which * ROWS
        b_position = prefix + (first_row + gl.arange(0, ROWS, ROW)) // GROUP
        b_max = gl.full([ROWS], float("-inf"), gl.float32, ROW)
        b_sum = gl.full([ROWS], 0.0, gl.float32, ROW)
        b_acc = gl.full([ROWS, D], 0.0, gl.float32, O_LAYOUT)
        # Steps that every row sees whole need no mask.
        seen = gl.maximum((prefix + first_row // GROUP + 1) // BLOCK_N, 1)
        steps = (end + BLOCK_N - 1) // BLOCK_N

        stage = count % NUM_STAGES
        mbarrier.wait(k_full.index(stage), (count // NUM_STAGES) & 1)
        s = begin_scores(q, shared_k.index(stage), S_LAYOUT)
        s = warpgroup_mma_wait(0, deps=(s,))
        mbarrier.arrive(k_empty.index(stage))
        s = visible(s, 0, b_position, end, S_LAYOUT)
        b_w, b_max, b_sum, _ = soften(s, b_max, b_sum, scale_log2)
        b_p = gl.convert_layout(b_w.to(out.dtype.element_ty), P_LAYOUT)
        state = (b_p, b_max, b_sum, b_acc)
        count += 1
        state, count = attend(
            q,
            stages,
            state,
            count,
            1,
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
        mbarrier.arrive(q_empty.index(q_stage))
        stage = (count - 1) % NUM_STAGES
        mbarrier.wait(v_full.index(stage), ((count - 1) // NUM_STAGES) & 1)
        b_acc = warpgroup_mma(b_p, shared_v.index(stage), b_acc, is_async=True)
        b_acc, b_p = warpgroup_mma_wait(0, deps=(b_acc, b_p))
        mbarrier.arrive(v_empty.index(stage))
        b_acc = b_acc / gl.convert_layout(b_sum, gl.SliceLayout(1, O_LAYOUT))[:, None]
        first_token = gl.load(query_start + i_seq)
        store_rows(out, b_acc, first_row, first_token, num_queries, item % HKV, HKV, GROUP)
        number += 1
        q_stage = number % QUERY_STAGES
        mbarrier.wait(q_full.index(q_stage), (number // QUERY_STAGES) & 1)
        item = told_item(slot.index(q_stage))
