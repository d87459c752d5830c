"""Prefill attention in Triton: every chunk of a step in one launch, its prefix read from pages."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from kernels.attention.tiles import LOG2_E, PrefillTile, prefill_tile
from kernels.launch import launch_options


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


# A slice of a step's table begins anywhere: no new kernel for that.
@triton.jit(
    do_not_specialize=["num_seqs", "stride_table"],
    do_not_specialize_on_alignment=["block_tables", "query_start", "context_lens"],
)
def prefill_kernel(
    # read
    q,
    k_cache,
    v_cache,
    block_tables,
    query_start,
    context_lens,
    # written
    out,
    # sizes
    num_seqs,
    scale_log2,
    # strides
    stride_token,
    stride_head,
    stride_table,
    # meta: a row is (query, head of the GROUP query heads of a key head)
    HKV: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BS: tl.constexpr,
    BLOCK_SEQS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program takes BLOCK_M rows of one key head of one sequence.

    Which sequence is found here from query_start. A sequence's last rows go first: they see the
    most positions, and the short programs fill the end of the launch.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    i_h = tl.program_id(0) % HKV
    i_tile = tl.program_id(0) // HKV
    i_b = tl.arange(0, BLOCK_SEQS)
    m_b = i_b < num_seqs
    b_first = tl.load(query_start + i_b, mask=m_b, other=0)
    b_last = tl.load(query_start + i_b + 1, mask=m_b, other=0)
    b_tiles = tl.cdiv((b_last - b_first) * GROUP, BLOCK_M)
    b_end = tl.cumsum(b_tiles, 0)
    i_seq = tl.sum((b_end <= i_tile).to(tl.int32))
    if i_seq >= num_seqs:
        return
    i_tile = tl.sum(tl.where(i_b <= i_seq, b_tiles, 0)) - 1 - i_tile
    first_token = tl.load(query_start + i_seq)
    num_queries = tl.load(query_start + i_seq + 1) - first_token
    prefix = tl.load(context_lens + i_seq) - num_queries

    i_r = i_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    i_d = tl.arange(0, BLOCK_D)
    i_q = i_r // GROUP
    m_r = (i_q < num_queries)[:, None] & (i_d < D)[None, :]
    b_token = (first_token + i_q).to(tl.int64)
    b_head = i_h * GROUP + i_r % GROUP
    p_q = q + (b_token * stride_token + b_head * stride_head)[:, None] + i_d[None, :]
    b_q = tl.load(p_q, mask=m_r, other=0.0)
    b_position = prefix + i_q
    p_table = block_tables + i_seq.to(tl.int64) * stride_table
    b_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    b_sum = tl.zeros([BLOCK_M], tl.float32)
    b_acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    # Positions that every row sees need no mask; the rest, to the last row's, are few.
    seen = (prefix + i_tile * BLOCK_M // GROUP + 1) // BLOCK_N * BLOCK_N
    end = prefix + tl.minimum((i_tile * BLOCK_M + BLOCK_M - 1) // GROUP + 1, num_queries)
    b_max, b_sum, b_acc = attend(
        b_q,
        b_max,
        b_sum,
        b_acc,
        k_cache,
        v_cache,
        p_table,
        b_position,
        i_h,
        0,
        seen,
        scale_log2,
        HKV,
        D,
        BS,
        BLOCK_N,
        BLOCK_D,
        PRECISION,
        False,
    )
    b_max, b_sum, b_acc = attend(
        b_q,
        b_max,
        b_sum,
        b_acc,
        k_cache,
        v_cache,
        p_table,
        b_position,
        i_h,
        seen,
        end,
        scale_log2,
        HKV,
        D,
        BS,
        BLOCK_N,
        BLOCK_D,
        PRECISION,
        True,
    )
    p_out = out + ((b_token * HKV * GROUP + b_head) * D)[:, None] + i_d[None, :]
    tl.store(p_out, (b_acc / b_sum[:, None]).to(out.dtype.element_ty), mask=m_r)


def prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    num_queries: Sequence[int],
    out: torch.Tensor,
    tile: PrefillTile | None = None,
) -> None:
    """q [T, HQ, D] of the whole step, caches contiguous; out [T, HQ, D] contiguous.

    Tables, query_start [B+1] (places in q) and context_lens are those of the chunks alone, whose
    lengths num_queries repeats for the host. Their rows of out are written.
    """
    num_heads, head_dim = q.shape[1:]
    block_size, num_kv_heads = k_cache.shape[1:3]
    group = num_heads // num_kv_heads
    tile = tile or prefill_tile(head_dim, q.element_size())
    num_tiles = sum(triton.cdiv(count * group, tile.block_m) for count in num_queries)
    prefill_kernel[(num_tiles * num_kv_heads,)](
        q,
        k_cache,
        v_cache,
        block_tables,
        query_start,
        context_lens,
        out,
        len(num_queries),
        scale * LOG2_E,
        q.stride(0),
        q.stride(1),
        block_tables.stride(0),
        HKV=num_kv_heads,
        GROUP=group,
        D=head_dim,
        BS=block_size,
        BLOCK_SEQS=max(16, triton.next_power_of_2(len(num_queries))),
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_D=max(16, triton.next_power_of_2(head_dim)),
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **launch_options(q.device),
    )
