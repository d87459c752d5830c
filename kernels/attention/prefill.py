"""Prefill attention in Triton: every chunk of a step in one launch, its prefix read from pages."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.attention.chunks import MAX_ITEMS, MAX_PARTS, Cut, Launch, launch_of_any, launches
from kernels.attention.parts import new_parts
from kernels.attention.prefill_parts import add_parts, attend, count_parts, store_part
from kernels.attention.tickets import tickets
from kernels.attention.tiles import LOG2_E, PrefillTile, prefill_tile
from kernels.launch import launch_options


# A slice of a step's table begins anywhere: no new kernel for that.
@triton.jit(
    do_not_specialize=[
        "num_seqs",
        "num_tokens",
        "max_positions",
        "num_units",
        "num_slots",
        "stride_table",
    ],
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
    partials,
    log_sums,
    tickets,
    # sizes
    num_seqs,
    num_tokens,
    max_positions,
    num_units,
    num_slots,
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
    SPLIT: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
    MAX_ITEMS: tl.constexpr,
    MAX_PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program takes BLOCK_M rows of one key head of one sequence, or a part of their positions.

    Which is found here from query_start and context_lens. A sequence's last rows go first: they
    see the most positions, and the short programs fill the end of the launch. The program that
    ends a tile's last part (its ticket says so) adds up all parts, in the order of positions.
    num_units and num_slots are the host's: should they not be what the lengths here make of them,
    a tile that lacks parts or scratch is not cut, and nothing is read or written outside.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    i_h = tl.program_id(0) % HKV
    i_unit = tl.program_id(0) // HKV
    i_b = tl.arange(0, BLOCK_SEQS)
    m_b = i_b < num_seqs
    b_first = tl.load(query_start + i_b, mask=m_b, other=0)
    b_last = tl.load(query_start + i_b + 1, mask=m_b, other=0)
    b_queries = tl.maximum(tl.minimum(b_last, num_tokens) - tl.maximum(b_first, 0), 0)
    b_units = tl.cdiv(b_queries * GROUP, BLOCK_M)
    b_slots = b_units * 0
    if SPLIT:
        b_context = tl.load(context_lens + i_b, mask=m_b, other=1)
        b_context = tl.maximum(tl.minimum(b_context, max_positions), 1)
        b_tiles, b_parts, _ = count_parts(
            b_queries, b_context, GROUP, HKV, BLOCK_M, BLOCK_N, MIN_SPLIT, MAX_ITEMS, MAX_PARTS
        )
        b_units = b_tiles * b_parts
        b_slots = tl.where(b_parts > 1, b_units, 0)
    i_seq = tl.sum((tl.cumsum(b_units, 0) <= i_unit).to(tl.int32))
    if i_seq >= num_seqs:
        return
    first_unit = tl.sum(tl.where(i_b < i_seq, b_units, 0))
    first_token = tl.maximum(tl.load(query_start + i_seq), 0)
    num_queries = tl.minimum(tl.load(query_start + i_seq + 1), num_tokens) - first_token
    context = tl.maximum(tl.minimum(tl.load(context_lens + i_seq), max_positions), 1)
    prefix = tl.maximum(context - num_queries, 0)
    num_tiles = tl.cdiv(num_queries * GROUP, BLOCK_M)
    num_parts = 1
    i_part = 0
    size = 0
    slot = 0
    i_tile = i_unit - first_unit
    if SPLIT:
        _, num_parts, size = count_parts(
            num_queries, context, GROUP, HKV, BLOCK_M, BLOCK_N, MIN_SPLIT, MAX_ITEMS, MAX_PARTS
        )
        i_part = i_tile % num_parts
        i_tile = i_tile // num_parts
        slot = tl.sum(tl.where(i_b < i_seq, b_slots, 0)) + i_tile * num_parts
        is_whole = (first_unit + (i_tile + 1) * num_parts <= num_units) & (
            slot + num_parts <= num_slots
        )
        num_parts = tl.where(is_whole, num_parts, 1)
        i_part = tl.where(is_whole, i_part, 0)
    i_tile = num_tiles - 1 - i_tile

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
    begin = i_part * size
    end = prefix + tl.minimum((i_tile * BLOCK_M + BLOCK_M - 1) // GROUP + 1, num_queries)
    end = tl.where(i_part + 1 < num_parts, begin + size, tl.minimum(end, context))
    seen = tl.minimum((prefix + i_tile * BLOCK_M // GROUP + 1) // BLOCK_N * BLOCK_N, end)
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
        begin,
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
    b_acc = b_acc / b_sum[:, None]
    p_out = out + ((b_token * HKV * GROUP + b_head) * D)[:, None] + i_d[None, :]
    if SPLIT:
        if num_parts == 1:
            tl.store(p_out, b_acc.to(out.dtype.element_ty), mask=m_r)
        else:
            i_place = tl.cast(slot, tl.int64) * HKV + i_h
            p_partials = partials + i_place * (BLOCK_M * BLOCK_D)
            p_logs = log_sums + i_place * BLOCK_M
            stride_part: tl.constexpr = HKV * BLOCK_M
            is_last = store_part(
                p_partials,
                p_logs,
                tickets + i_place,
                b_acc,
                b_max + tl.log2(b_sum),
                i_part,
                num_parts,
                stride_part,
                BLOCK_M,
                BLOCK_D,
            )
            if is_last:
                b_out = add_parts(p_partials, p_logs, num_parts, stride_part, BLOCK_M, BLOCK_D)
                tl.store(p_out, b_out.to(out.dtype.element_ty), mask=m_r)
                tl.store(tickets + i_place, 0)
    else:
        tl.store(p_out, b_acc.to(out.dtype.element_ty), mask=m_r)


def prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    chunks: Sequence[tuple[int, int]] | None,
    out: torch.Tensor,
    tile: PrefillTile | None = None,
) -> None:
    """q [T, HQ, D] of the whole step, caches contiguous; out [T, HQ, D] contiguous.

    Tables, query_start [B+1] (places in q) and context_lens are those of the chunks alone, whose
    lengths, (queries, positions), chunks repeats for the host; None: the device alone knows them,
    those without queries last. Their rows of out are written.
    """
    head_dim = q.shape[2]
    num_kv_heads = k_cache.shape[2]
    tile = tile or prefill_tile(head_dim, q.element_size())
    group = q.shape[1] // num_kv_heads
    cut = Cut(tile.block_m, tile.block_n, tile.min_split, group, num_kv_heads)
    if chunks is None:
        parts = [launch_of_any(cut, len(context_lens), len(q))]
    else:
        parts = launches(cut, chunks)
    for part in parts:
        tensors = (
            block_tables[part.first :],
            query_start[part.first :],
            context_lens[part.first :],
        )
        _launch(part, cut, tile, (q, k_cache, v_cache, *tensors), scale, out)


def _launch(
    part: Launch,
    cut: Cut,
    tile: PrefillTile,
    read: tuple[torch.Tensor, ...],
    scale: float,
    out: torch.Tensor,
) -> None:
    q, k_cache, _, block_tables, *_ = read
    block_size, num_kv_heads = k_cache.shape[1:3]
    meta = _meta(part, cut, tile, q, k_cache)
    num_places = part.num_slots * num_kv_heads
    parts = new_parts(q, num_places * tile.block_m, meta["BLOCK_D"])
    written = (out, *parts, tickets(q.device, num_places))
    num_seqs, max_positions = part.last - part.first, block_tables.shape[1] * block_size
    sizes = (num_seqs, q.shape[0], max_positions, part.num_units, part.num_slots, scale * LOG2_E)
    strides = (q.stride(0), q.stride(1), block_tables.stride(0))
    grid = (part.num_units * num_kv_heads,)
    prefill_kernel[grid](*read, *written, *sizes, *strides, **meta, **launch_options(q.device))


def _meta(
    part: Launch, cut: Cut, tile: PrefillTile, q: torch.Tensor, k_cache: torch.Tensor
) -> dict[str, Any]:
    block_size, num_kv_heads, head_dim = k_cache.shape[1:]
    return {
        "HKV": num_kv_heads,
        "GROUP": cut.group,
        "D": head_dim,
        "BS": block_size,
        "BLOCK_SEQS": max(16, triton.next_power_of_2(part.last - part.first)),
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_D": max(16, triton.next_power_of_2(head_dim)),
        "SPLIT": part.num_slots > 0,
        "MIN_SPLIT": tile.min_split,
        "MAX_ITEMS": MAX_ITEMS,
        "MAX_PARTS": MAX_PARTS,
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }
