"""What the Triton prefill does with a tile: steps over positions, parts of them, their sum."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl


@triton.jit
def attend(
    b_q,
    b_max,
    b_sum,
    b_acc,
    k_cache,
    v_cache,
    p_table,
    b_position,
    i_h,
    begin,
    end,
    scale_log2,
    HKV: tl.constexpr,
    D: tl.constexpr,
    BS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The running softmax over positions begin to end, all of them visible unless MASKED."""
    i_d = tl.arange(0, BLOCK_D)
    for start in tl.range(begin, end, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        if MASKED:
            # Rows behind the end are zeros in registers: another request's NaN is never multiplied.
            m_n = i_n < end
            m_kv = m_n[:, None] & (i_d < D)[None, :]
            b_page = tl.load(p_table + i_n // BS, mask=m_n, other=0).to(tl.int64)
        else:
            b_page = tl.load(p_table + i_n // BS).to(tl.int64)
        offsets = ((b_page * BS + i_n % BS) * (HKV * D) + i_h * D)[:, None] + i_d[None, :]
        if MASKED:
            b_k = tl.load(k_cache + offsets, mask=m_kv, other=0.0)
        elif D == BLOCK_D:
            b_k = tl.load(k_cache + offsets)
        else:
            b_k = tl.load(k_cache + offsets, mask=(i_d < D)[None, :], other=0.0)
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        if MASKED:
            m_s = (i_n[None, :] <= b_position[:, None]) & m_n[None, :]
            b_s = tl.where(m_s, b_s, float("-inf"))
        b_top = tl.maximum(b_max, tl.max(b_s, 1) * scale_log2)
        b_p = tl.exp2(b_s * scale_log2 - b_top[:, None])
        b_shrink = tl.exp2(b_max - b_top)
        b_sum = b_sum * b_shrink + tl.sum(b_p, 1)
        b_acc = b_acc * b_shrink[:, None]
        if MASKED:
            b_v = tl.load(v_cache + offsets, mask=m_kv, other=0.0)
        elif D == BLOCK_D:
            b_v = tl.load(v_cache + offsets)
        else:
            b_v = tl.load(v_cache + offsets, mask=(i_d < D)[None, :], other=0.0)
        b_acc = tl.dot(b_p.to(b_v.dtype), b_v, b_acc, input_precision=PRECISION)
        b_max = b_top
    return b_max, b_sum, b_acc


@triton.jit
def count_parts(
    num_queries,
    context,
    GROUP: tl.constexpr,
    HKV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
    MAX_ITEMS: tl.constexpr,
    MAX_PARTS: tl.constexpr,
):
    """(tiles of a chunk, parts of each, positions of a part): the rule of chunks.Cut."""
    num_tiles = tl.cdiv(num_queries * GROUP, BLOCK_M)
    most = tl.minimum(MAX_ITEMS // (tl.maximum(num_tiles, 1) * HKV), MAX_PARTS)
    most = tl.maximum(tl.minimum(most, context // MIN_SPLIT), 1)
    size = tl.cdiv(context, most * BLOCK_N) * BLOCK_N
    return num_tiles, tl.maximum(context - num_queries, 0) // size + 1, size


@triton.jit
def store_part(
    p_partials,
    p_logs,
    ticket,
    b_acc,
    b_log,
    i_part,
    num_parts,
    stride_part,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Whether that was the last of a tile's parts to come: they may be added up then."""
    i_r = tl.arange(0, BLOCK_M)
    i_d = tl.arange(0, BLOCK_D)
    offset = i_part.to(tl.int64) * stride_part
    tl.store(p_logs + offset + i_r, b_log)
    tl.store(p_partials + offset * BLOCK_D + i_r[:, None] * BLOCK_D + i_d[None, :], b_acc)
    # Every thread's stores come before the ticket, whose release publishes them.
    tl.debug_barrier()
    taken = tl.atomic_add(ticket, 1, sem="acq_rel", scope="gpu")
    tl.debug_barrier()
    return taken == num_parts - 1


@triton.jit
def add_parts(
    p_partials,
    p_logs,
    num_parts,
    stride_part,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Σ_p 2^logs[p] · partials[p] / Σ_p 2^logs[p] of a tile's rows, in order, past the L1 cache."""
    i_r = tl.arange(0, BLOCK_M)
    i_d = tl.arange(0, BLOCK_D)
    b_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    b_sum = tl.zeros([BLOCK_M], tl.float32)
    b_out = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for _ in range(num_parts):
        b_log = tl.load(p_logs + i_r, cache_modifier=".cg")
        p_part = p_partials + i_r[:, None] * BLOCK_D + i_d[None, :]
        b_part = tl.load(p_part, cache_modifier=".cg")
        b_top = tl.maximum(b_max, b_log)
        b_weight = tl.exp2(b_log - b_top)
        b_shrink = tl.exp2(b_max - b_top)
        b_sum = b_sum * b_shrink + b_weight
        b_out = b_out * b_shrink[:, None] + b_part * b_weight[:, None]
        b_max = b_top
        p_logs += stride_part
        p_partials += stride_part * BLOCK_D
    return b_out / b_sum[:, None]
