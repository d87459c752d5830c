"""Shrunk tokens in the order of each tile's list: shares summed, masked and rounded once.

Every column block of a consumer multiplies the same h; what is done here, one of them need not do.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl

from kernels.launch import launch_options
from kernels.lora.batch import TilePlan
from kernels.lora.tile import listed_rows, tile_tokens

# Rows of a program, and how many rows behind a list's end a reader's block may reach.
BLOCK_ROWS, MARGIN = 128, 256


@triton.jit(do_not_specialize=["num_tokens", "capacity"])
def list_rows_kernel(
    # read: [SPLIT, T, NS, max_rank], the plan
    h,
    order,
    slots,
    entries,
    num_pages,
    # written: [tiles, NS, BT, max_rows]
    rows,
    # sizes
    num_tokens,
    capacity,
    max_rank,
    max_rows,
    # meta
    NS: tl.constexpr,
    PR: tl.constexpr,
    BT: tl.constexpr,
    BR: tl.constexpr,
    MARGIN: tl.constexpr,
    SPLIT: tl.constexpr,
    PDL: tl.constexpr,
):
    i_tile = tl.program_id(0)
    i_slice = tl.program_id(1)
    i_row = tl.program_id(2) * BR + tl.arange(0, BR)
    num_rows = tl.load(num_pages + i_tile) * PR
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if tl.program_id(2) * BR >= num_rows + MARGIN:
        return
    token, _, slot = tile_tokens(order, slots, i_tile, num_tokens, BT)
    _, owner, row, _, _ = listed_rows(entries, i_tile, i_row, num_rows, capacity, PR)
    plane = tl.cast(NS * max_rank, tl.int64) * num_tokens
    p_h = h + ((token * NS + i_slice) * max_rank)[:, None] + row[None, :]
    m_own = slot[:, None] == owner[None, :]
    b_h = tl.load(p_h, mask=m_own, other=0.0).to(tl.float32)
    for _ in range(1, SPLIT):
        p_h += plane
        b_h += tl.load(p_h, mask=m_own, other=0.0).to(tl.float32)
    i_t = tl.arange(0, BT)
    o_rows = ((i_tile.to(tl.int64) * NS + i_slice) * BT + i_t) * max_rows
    tl.store(rows + o_rows[:, None] + i_row[None, :], b_h.to(rows.dtype.element_ty))


def new_rows(
    h: torch.Tensor, plan: TilePlan, rows_per_page: int, dtype: torch.dtype
) -> torch.Tensor:
    """Room for what list_rows fills: [tiles, NS, tokens of a tile, max_rows]."""
    most = plan.entries.shape[1] * rows_per_page
    max_rows = triton.cdiv(most, BLOCK_ROWS) * BLOCK_ROWS + MARGIN
    num_tiles = plan.num_pages.shape[0]
    return h.new_empty((num_tiles, h.shape[2], plan.tokens_per_tile, max_rows), dtype=dtype)


def list_rows(h: torch.Tensor, plan: TilePlan, rows_per_page: int, rows: torch.Tensor) -> None:
    """Fills rows (new_rows) of h [SPLIT, T, NS, max_rank], zeros behind each list's end."""
    split, num_tokens, num_slices, max_rank = h.shape
    num_tiles, _, tokens_per_tile, max_rows = rows.shape
    if num_tiles:
        list_rows_kernel[(num_tiles, num_slices, max_rows // BLOCK_ROWS)](
            h,
            plan.order,
            plan.slots,
            plan.entries,
            plan.num_pages,
            rows,
            num_tokens,
            plan.entries.shape[1],
            max_rank,
            max_rows,
            NS=num_slices,
            PR=rows_per_page,
            BT=tokens_per_tile,
            BR=BLOCK_ROWS,
            MARGIN=MARGIN,
            SPLIT=split,
            num_warps=4,
            **launch_options(h.device),
        )
