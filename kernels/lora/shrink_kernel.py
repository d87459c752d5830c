"""h[t, s] = scale · A_s x[t]: a fixed number of programs share what is listed for each tile.

An item is a block of a tile's rank rows, a slice and a share of H. Shares of H are left apart, for
the reader to add in order: no program waits for another.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.lora.tile import listed_rows, tile_tokens


@triton.jit(do_not_specialize=["num_tokens", "capacity", "COLUMN"])
def lora_shrink_kernel(
    # read: tokens, rank rows, scales
    x,
    a,
    scales,
    # read if SCALED: [NP, NS, PR]
    row_scales,
    # read: the plan
    order,
    slots,
    entries,
    num_pages,
    # written: [SPLIT, T, NS, max_rank], a token's own rows to the end of their page
    h,
    # sizes
    num_tokens,
    H,
    capacity,
    max_rank,
    # strides
    stride_x,
    stride_a_page,
    stride_a_slice,
    stride_a_row,
    stride_scales,
    # meta
    COLUMN,
    NS: tl.constexpr,
    PR: tl.constexpr,
    TILE: tl.constexpr,
    BT: tl.constexpr,
    BR: tl.constexpr,
    BH: tl.constexpr,
    SPLIT: tl.constexpr,
    STEPS: tl.constexpr,
    SCALED: tl.constexpr,
    WIDE: tl.constexpr,
    UPCAST: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    i_tile = tl.program_id(1)
    num_rows = tl.load(num_pages + i_tile) * PR
    token, _, slot = tile_tokens(order, slots, i_tile, num_tokens, TILE, BT)
    plane = tl.cast(NS * max_rank, tl.int64) * num_tokens
    num_items = tl.cdiv(num_rows, BR) * NS * SPLIT
    for item in range(tl.program_id(0), num_items, tl.num_programs(0)):
        i_split = item % SPLIT
        i_slice = item // SPLIT % NS
        i_row = item // (SPLIT * NS) * BR + tl.arange(0, BR)
        page, owner, row, i_place, m_row = listed_rows(
            entries, i_tile, i_row, num_rows, capacity, PR
        )
        p_scale = scales + owner.to(tl.int64) * stride_scales + COLUMN + i_slice
        scale = tl.load(p_scale, mask=owner >= 0, other=0.0)
        if SCALED:
            p_row_scale = row_scales + (page * NS + i_slice) * PR + i_place
            scale *= tl.load(p_row_scale, mask=m_row, other=0.0)
        o_a = page * stride_a_page + i_slice * stride_a_slice + i_place * stride_a_row
        # The order is by slot, so a block's owners are a run of the tile's tokens: load no other.
        first, last = tl.min(tl.where(owner < 0, 2147483647, owner)), tl.max(owner)
        m_x = ((slot >= first) & (slot <= last))[:, None]
        acc = tl.zeros((BT, BR) if WIDE else (BR, BT), dtype=tl.float32)
        for step in range(i_split * STEPS, (i_split + 1) * STEPS):
            i_h = (step * BH + tl.arange(0, BH))[None, :]
            b_a = tl.load((a + o_a)[:, None] + i_h, mask=m_row[:, None] & (i_h < H), other=0.0)
            b_x = tl.load((x + token * stride_x)[:, None] + i_h, mask=m_x & (i_h < H), other=0.0)
            b_a = b_a.to(x.dtype.element_ty)
            if UPCAST:
                b_a = b_a.to(tl.float32)
                b_x = b_x.to(tl.float32)
            if WIDE:
                acc = tl.dot(b_x, tl.trans(b_a), acc, input_precision="ieee")
            else:
                acc = tl.dot(b_a, tl.trans(b_x), acc, input_precision="ieee")
        p_h = h + i_split * plane + ((token * NS + i_slice) * max_rank)[:, None] + row[None, :]
        out = (acc if WIDE else tl.trans(acc)) * scale[None, :]
        tl.store(p_h, out.to(h.dtype.element_ty), mask=slot[:, None] == owner[None, :])
