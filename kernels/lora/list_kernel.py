"""Shrunk tokens in the order of each tile's list: shares summed, masked and rounded once.

Every column block of an expand multiplies the same h; what is done here, one of them need not do.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.lora.tile import listed_rows, tile_tokens


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
    TILE: tl.constexpr,
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
    # The plan was complete before the kernel before this one began (see kernels/launch.py).
    token, _, slot = tile_tokens(order, slots, i_tile, num_tokens, TILE, BT)
    _, owner, row, _, _ = listed_rows(entries, i_tile, i_row, num_rows, capacity, PR)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    if tl.program_id(2) * BR >= num_rows + MARGIN:
        return
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
