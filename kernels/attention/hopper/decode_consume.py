"""Four warps of decode: K qᵀ, the running softmax and Vᵀ pᵀ; the sum of a sequence's parts."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.attention.hopper.barrier import thread_barrier
from kernels.attention.hopper.decode_parts import count_parts, find_part
from kernels.attention.hopper.pieces import clear_rows


@gluon.jit
def add_parts(
    out,
    partials,
    log_sums,
    num_parts,
    GROUP: gl.constexpr,
    D: gl.constexpr,
    BLOCK_PARTS: gl.constexpr,
):
    """out[e] = Σ_p 2^log_sums[p, e // D] · partials[p, e] / Σ_p 2^…, in order, past L1."""
    SIZE: gl.constexpr = GROUP * D
    layout: gl.constexpr = gl.BlockedLayout([1, max(SIZE // 128, 1)], [1, 32], [1, 4], [1, 0])
    i_e = gl.arange(0, SIZE, gl.SliceLayout(0, layout))
    b_top = gl.full([SIZE], float("-inf"), gl.float32, gl.SliceLayout(0, layout))
    b_sum = gl.full([SIZE], 0.0, gl.float32, gl.SliceLayout(0, layout))
    b_out = gl.full([SIZE], 0.0, gl.float32, gl.SliceLayout(0, layout))
    for first in range(0, num_parts, BLOCK_PARTS):
        i_p = first + gl.arange(0, BLOCK_PARTS, gl.SliceLayout(1, layout))
        mask = (i_p < num_parts)[:, None] & (i_e < SIZE)[None, :]
        p_log = log_sums + i_p[:, None] * GROUP + (i_e // D)[None, :]
        b_log = gl.load(p_log, mask=mask, other=float("-inf"), cache_modifier=".cg")
        p_part = partials + i_p[:, None] * SIZE + i_e[None, :]
        b_part = gl.load(p_part, mask=mask, other=0.0, cache_modifier=".cg")
        b_new = gl.maximum(b_top, gl.max(b_log, 0))
        b_weight = gl.exp2(b_log - b_new[None, :])
        b_shrink = gl.exp2(b_top - b_new)
        b_sum = b_sum * b_shrink + gl.sum(b_weight, 0)
        b_out = b_out * b_shrink + gl.sum(b_weight * b_part, 0)
        b_top = b_new
    gl.store(out + i_e, (b_out / b_sum).to(out.dtype.element_ty))


@gluon.jit
def consume(
    written,
    scale_log2,
    read,
    queries,
    stages,
    shared_p,
    HKV: gl.constexpr,
    GROUP: gl.constexpr,
    D: gl.constexpr,
    BLOCK_SEQS: gl.constexpr,
    MIN_SPLIT: gl.constexpr,
    MAX_SPLITS: gl.constexpr,
    BLOCK_PARTS: gl.constexpr,
    v_desc,
):
    out, partials, log_sums, tickets_of = written
    context_lens, num_seqs, max_positions = read
    shared_q, q_full, q_empty = queries
    shared_k, shared_v, full, empty = stages
    NUM_STAGES: gl.constexpr = shared_k.shape[0]
    BLOCK_N: gl.constexpr = shared_k.shape[1]
    PIECE: gl.constexpr = v_desc.block_shape[0]
    QUERY_STAGES: gl.constexpr = shared_q.shape[0]
    ROWS: gl.constexpr = shared_q.shape[1]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    HEAD: gl.constexpr = gl.SliceLayout(0, LAYOUT)
    i_n = gl.arange(0, BLOCK_N, gl.SliceLayout(1, LAYOUT))
    i_d = gl.arange(0, D, gl.SliceLayout(1, LAYOUT))
    i_g = gl.arange(0, ROWS, HEAD)
    counted = count_parts(
        context_lens, num_seqs, max_positions, BLOCK_SEQS, MIN_SPLIT, MAX_SPLITS, BLOCK_N
    )
    total = gl.sum(counted[1], 0) * HKV
    count = 0
    for item in range(gl.program_id(0), total, gl.num_programs(0)):
        i_seq, i_part, num_parts, begin, end = find_part(
            item // HKV, counted, context_lens, max_positions, MIN_SPLIT, MAX_SPLITS, BLOCK_N
        )
        b_max = gl.full([ROWS], float("-inf"), gl.float32, HEAD)
        b_weights = gl.full([BLOCK_N, ROWS], 0.0, gl.float32, LAYOUT)
        b_acc = gl.full([D, ROWS], 0.0, gl.float32, LAYOUT)
        number = item // gl.num_programs(0)
        q_stage = number % QUERY_STAGES
        mbarrier.wait(q_full.index(q_stage), (number // QUERY_STAGES) & 1)
        q = shared_q.index(q_stage).permute((1, 0))
        for start in range(begin, end, BLOCK_N):
            stage = count % NUM_STAGES
            v = shared_v.index(stage)
            mbarrier.wait(full.index(stage), (count // NUM_STAGES) & 1)
            zeros = gl.full([BLOCK_N, ROWS], 0.0, gl.float32, LAYOUT)
            s = warpgroup_mma(shared_k.index(stage), q, zeros, use_acc=False, is_async=True)
            num_kept = end - start
            if (num_kept < BLOCK_N) & (num_kept % PIECE != 0):
                # Another request's NaN may lie behind the end, and 0 · NaN is NaN.
                clear_rows(v_desc, v, num_kept)
            s = warpgroup_mma_wait(0, deps=(s,))
            s = gl.where((i_n < num_kept)[:, None], s * scale_log2, float("-inf"))
            b_top = gl.maximum(b_max, gl.max(s, 0))
            b_p = gl.exp2(s - b_top[None, :])
            b_shrink = gl.exp2(b_max - b_top)
            shared_p.permute((1, 0)).store(b_p.to(out.dtype.element_ty))
            fence_async_shared()
            b_weights = b_weights * b_shrink[None, :] + b_p
            b_acc = b_acc * b_shrink[None, :]
            b_max = b_top
            thread_barrier()
            b_acc = warpgroup_mma(v.permute((1, 0)), shared_p.permute((1, 0)), b_acc, is_async=True)
            b_acc = warpgroup_mma_wait(0, deps=(b_acc,))
            mbarrier.arrive(empty.index(stage))
            count += 1
        mbarrier.arrive(q_empty.index(q_stage))
        b_sum = gl.sum(b_weights, 0)
        # A padded sequence (length 0) gets zeros: finite, and nobody reads them.
        b_acc = b_acc / gl.where(b_sum > 0, b_sum, 1.0)[None, :]

        i_row = (i_seq * HKV + item % HKV).to(gl.int64)
        offsets = i_g[None, :] * D + i_d[:, None]
        m_out = (i_g < GROUP)[None, :] & (i_d < D)[:, None]
        if num_parts == 1:
            p_out = out + i_row * (GROUP * D) + offsets
            gl.store(p_out, b_acc.to(out.dtype.element_ty), mask=m_out)
        else:
            i_place = i_row * MAX_SPLITS + i_part
            gl.store(partials + i_place * (GROUP * D) + offsets, b_acc, mask=m_out)
            gl.store(log_sums + i_place * GROUP + i_g, b_max + gl.log2(b_sum), mask=i_g < GROUP)
            # Every thread's stores come before the ticket, whose release publishes them.
            thread_barrier()
            taken = gl.atomic_add(tickets_of + i_row, 1, sem="acq_rel", scope="gpu")
            if taken == num_parts - 1:
                thread_barrier()
                add_parts(
                    out + i_row * (GROUP * D),
                    partials + i_row * (MAX_SPLITS * GROUP * D),
                    log_sums + i_row * (MAX_SPLITS * GROUP),
                    num_parts,
                    GROUP,
                    D,
                    BLOCK_PARTS,
                )
                gl.store(tickets_of + i_row, 0)
