"""Decode attention in Triton: one query a sequence, its positions split over programs."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from kernels.attention.parts import new_parts
from kernels.attention.tickets import tickets
from kernels.attention.tiles import LOG2_E, DecodeTile, decode_tile, max_splits, num_processors
from kernels.launch import launch_options


@triton.jit
def part_size(length, MIN_SPLIT: tl.constexpr, MAX_SPLITS: tl.constexpr, BLOCK_N: tl.constexpr):
    """Positions of each part of a sequence: by its own length alone, whoever else is in the step.

    Parts are at least MIN_SPLIT long (but for an only one), at most MAX_SPLITS, and even.
    """
    longest = tl.cdiv(tl.cdiv(length, MAX_SPLITS), BLOCK_N) * BLOCK_N
    num_parts = tl.maximum(tl.cdiv(length, tl.maximum(longest, MIN_SPLIT)), 1)
    return tl.maximum(tl.cdiv(tl.cdiv(length, num_parts), BLOCK_N), 1) * BLOCK_N


# A slice of a step's table begins anywhere: no new kernel for that.
@triton.jit(
    do_not_specialize=["num_seqs", "max_positions", "stride_table"],
    do_not_specialize_on_alignment=["block_tables", "context_lens"],
)
def decode_kernel(
    # read
    q,
    k_cache,
    v_cache,
    block_tables,
    context_lens,
    # written
    out,
    partials,
    log_sums,
    tickets,
    # sizes
    num_seqs,
    max_positions,
    scale_log2,
    # strides
    stride_token,
    stride_head,
    stride_table,
    # meta: GROUP query heads of a key head, in ROWS rows of a tensor core's tile
    HKV: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BS: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    BLOCK_SEQS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program takes parts pid, pid + programs, …: (sequence, part, key head), heads fastest.

    Which parts exist is read from context_lens here, so a captured graph serves any lengths, and
    no program is launched for a part that does not exist. The program that finishes a sequence's
    last part (its ticket says so) adds up all parts, always in the order of their positions.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    i_b = tl.arange(0, BLOCK_SEQS)
    m_b = i_b < num_seqs
    b_len = tl.minimum(tl.load(context_lens + i_b, mask=m_b, other=0), max_positions)
    b_size = part_size(b_len, MIN_SPLIT, MAX_SPLITS, BLOCK_N)
    b_parts = tl.where(m_b, tl.maximum(tl.cdiv(b_len, b_size), 1), 0)
    b_end = tl.cumsum(b_parts, 0)
    i_r = tl.arange(0, ROWS)
    i_d = tl.arange(0, BLOCK_D)
    m_r = i_r < GROUP
    m_d = i_d < D
    m_out = m_r[:, None] & m_d[None, :]
    for item in range(tl.program_id(0), tl.sum(b_parts) * HKV, tl.num_programs(0)):
        i_h = item % HKV
        i_unit = item // HKV
        i_seq = tl.sum((b_end <= i_unit).to(tl.int32))
        i_part = i_unit - tl.sum(tl.where(i_b < i_seq, b_parts, 0))
        length = tl.minimum(tl.load(context_lens + i_seq), max_positions)
        size = part_size(length, MIN_SPLIT, MAX_SPLITS, BLOCK_N)
        num_parts = tl.maximum(tl.cdiv(length, size), 1)
        end = tl.minimum(i_part * size + size, length)

        p_q = q + i_seq.to(tl.int64) * stride_token + (i_h * GROUP + i_r)[:, None] * stride_head
        b_q = tl.load(p_q + i_d[None, :], mask=m_out, other=0.0)
        p_table = block_tables + i_seq.to(tl.int64) * stride_table
        b_max = tl.full([ROWS], float("-inf"), tl.float32)
        b_sum = tl.zeros([ROWS], tl.float32)
        b_acc = tl.zeros([ROWS, BLOCK_D], tl.float32)
        for start in range(i_part * size, end, BLOCK_N):
            i_n = start + tl.arange(0, BLOCK_N)
            m_n = i_n < end
            # Rows behind the end are zeros in registers: another request's NaN is never multiplied.
            m_kv = m_n[:, None] if D == BLOCK_D else m_n[:, None] & m_d[None, :]
            b_page = tl.load(p_table + i_n // BS, mask=m_n, other=0).to(tl.int64)
            offsets = ((b_page * BS + i_n % BS) * (HKV * D) + i_h * D)[:, None] + i_d[None, :]
            b_k = tl.load(k_cache + offsets, mask=m_kv, other=0.0)
            b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * scale_log2
            b_s = tl.where(m_n[None, :], b_s, float("-inf"))
            b_top = tl.maximum(b_max, tl.max(b_s, 1))
            b_p = tl.exp2(b_s - b_top[:, None])
            b_shrink = tl.exp2(b_max - b_top)
            b_sum = b_sum * b_shrink + tl.sum(b_p, 1)
            b_v = tl.load(v_cache + offsets, mask=m_kv, other=0.0)
            b_acc = b_acc * b_shrink[:, None]
            b_acc = tl.dot(b_p.to(b_v.dtype), b_v, b_acc, input_precision=PRECISION)
            b_max = b_top
        # A padded sequence (length 0) gets zeros: finite, and nobody reads them.
        b_acc = b_acc / tl.where(b_sum > 0, b_sum, 1.0)[:, None]

        i_row = (i_seq * HKV + i_h).to(tl.int64)
        if num_parts == 1:
            p_out = out + i_row * (GROUP * D) + i_r[:, None] * D + i_d[None, :]
            tl.store(p_out, b_acc.to(out.dtype.element_ty), mask=m_out)
        else:
            p_part = partials + (i_row * MAX_SPLITS + i_part) * (GROUP * D)
            tl.store(p_part + i_r[:, None] * D + i_d[None, :], b_acc, mask=m_out)
            p_log = log_sums + (i_row * MAX_SPLITS + i_part) * GROUP
            tl.store(p_log + i_r, b_max + tl.log2(b_sum), mask=m_r)
            # Every thread's stores come before the ticket, whose release publishes them.
            tl.debug_barrier()
            taken = tl.atomic_add(tickets + i_row, 1, sem="acq_rel", scope="gpu")
            if taken == num_parts - 1:
                tl.debug_barrier()
                add_parts(
                    out + i_row * (GROUP * D),
                    partials + i_row * (MAX_SPLITS * GROUP * D),
                    log_sums + i_row * (MAX_SPLITS * GROUP),
                    num_parts,
                    GROUP,
                    D,
                    MAX_SPLITS,
                    BLOCK_D,
                    GROUP_ROWS,
                    BLOCK_PARTS,
                )
                tl.store(tickets + i_row, 0)


@triton.jit
def add_parts(
    out,
    partials,
    log_sums,
    num_parts,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
):
    """out[g] = Σ_p 2^log_sums[p, g] · partials[p, g] / Σ_p 2^log_sums[p, g], past the L1 cache."""
    i_s = tl.arange(0, MAX_SPLITS)
    i_g = tl.arange(0, GROUP_ROWS)
    i_d = tl.arange(0, BLOCK_D)
    m_g = i_g < GROUP
    m_log = (i_s < num_parts)[:, None] & m_g[None, :]
    p_log = log_sums + i_s[:, None] * GROUP + i_g[None, :]
    b_log = tl.load(p_log, mask=m_log, other=float("-inf"), cache_modifier=".cg")
    b_top = tl.where(m_g, tl.max(b_log, 0), 0.0)
    b_sum = tl.where(m_g, tl.sum(tl.exp2(b_log - b_top[None, :]), 0), 1.0)
    b_out = tl.zeros([GROUP_ROWS, BLOCK_D], tl.float32)
    for first in range(0, num_parts, BLOCK_PARTS):
        i_p = first + tl.arange(0, BLOCK_PARTS)
        m_p = (i_p < num_parts)[:, None] & m_g[None, :]
        p_weight = log_sums + i_p[:, None] * GROUP + i_g[None, :]
        b_weight = tl.load(p_weight, mask=m_p, other=float("-inf"), cache_modifier=".cg")
        b_weight = tl.exp2(b_weight - b_top[None, :])
        p_part = partials + (i_p[:, None] * GROUP + i_g[None, :])[:, :, None] * D
        m_part = m_p[:, :, None] & (i_d < D)[None, None, :]
        b_part = tl.load(p_part + i_d[None, None, :], mask=m_part, other=0.0, cache_modifier=".cg")
        b_out += tl.sum(b_part * b_weight[:, :, None], 0)
    b_out = b_out / b_sum[:, None]
    m_out = m_g[:, None] & (i_d < D)[None, :]
    tl.store(out + i_g[:, None] * D + i_d[None, :], b_out.to(out.dtype.element_ty), mask=m_out)


def decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    max_context: int,
    out: torch.Tensor,
    tile: DecodeTile | None = None,
) -> None:
    """q [B, HQ, D], heads adjacent; caches contiguous; out [B, HQ, D] contiguous, written.

    max_context bounds context_lens; of it only whether one part will do is taken.
    """
    num_seqs, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    tile = tile or decode_tile(num_seqs * num_kv_heads, head_dim, q.element_size())
    # One part for all is the same arithmetic as a split into one: bits do not depend on the bound.
    splits = 1 if max_context <= tile.min_split else max_splits(num_seqs)
    parts = new_parts(q, num_seqs * num_heads * splits if splits > 1 else 0, head_dim)
    programs = num_processors(q.device) * tile.programs_per_processor
    read = (q, k_cache, v_cache, block_tables, context_lens)
    written = (out, *parts, tickets(q.device, num_seqs * num_kv_heads))
    sizes = (num_seqs, block_tables.shape[1] * block_size, scale * LOG2_E)
    strides = (q.stride(0), q.stride(1), block_tables.stride(0))
    grid = (min(programs, num_seqs * num_kv_heads * splits),)
    meta = _meta(q, k_cache, splits, tile)
    decode_kernel[grid](*read, *written, *sizes, *strides, **meta, **launch_options(q.device))


def _meta(q: torch.Tensor, k_cache: torch.Tensor, splits: int, tile: DecodeTile) -> dict[str, Any]:
    block_size, num_kv_heads, head_dim = k_cache.shape[1:]
    group = q.shape[1] // num_kv_heads
    group_rows = triton.next_power_of_2(group)
    return {
        "HKV": num_kv_heads,
        "GROUP": group,
        "D": head_dim,
        "BS": block_size,
        "MIN_SPLIT": tile.min_split,
        "MAX_SPLITS": splits,
        "BLOCK_SEQS": max(16, triton.next_power_of_2(q.shape[0])),
        "BLOCK_N": tile.block_n,
        "BLOCK_D": max(16, triton.next_power_of_2(head_dim)),
        "ROWS": max(16, group_rows),
        "GROUP_ROWS": group_rows,
        "BLOCK_PARTS": max(1, 32 // group_rows),
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }
