"""y[t] += B h[t]: a program owns a block of columns for a tile of tokens, and all its rank rows.

The first rows, all there are when the tile has one adapter of a small rank, are on their way before
the kernel's turn; the others follow in wide blocks, all loads of a block in flight at once.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.lora.tile import add_delta, add_rows, column_block, rows_of_b, shrunk_rows, tile_tokens


@triton.jit(do_not_specialize=["num_tokens", "capacity"])
def lora_expand_kernel(
    # read: shares of the shrunk tokens [SPLIT, T, NS, max_rank], rank rows
    h,
    b,
    # read: the plan
    order,
    slots,
    entries,
    num_pages,
    # read and written: [T, N]
    y,
    # sizes
    num_tokens,
    size_0,
    size_1,
    size_2,
    capacity,
    max_rank,
    # strides
    stride_b_page,
    stride_b_row,
    stride_y,
    # meta
    NS: tl.constexpr,
    PR: tl.constexpr,
    BT: tl.constexpr,
    BN: tl.constexpr,
    FIRST: tl.constexpr,
    BR: tl.constexpr,
    SPLIT: tl.constexpr,
    WIDE: tl.constexpr,
    UPCAST: tl.constexpr,
    PDL: tl.constexpr,
):
    i_tile = tl.program_id(0)
    # The plan and B were complete before the kernel before this one began (see kernels/launch.py):
    # they are on their way while it ends. What it wrote, h or y, is read after the wait.
    num_rows = tl.load(num_pages + i_tile) * PR
    token, _, slot = tile_tokens(order, slots, i_tile, num_tokens, BT)
    i_slice, i_n, m_n = column_block(tl.program_id(1), size_0, size_1, size_2, NS, BN)
    b_b, owner, row = rows_of_b(
        b,
        entries,
        i_tile,
        0,
        i_n,
        m_n,
        num_rows,
        capacity,
        stride_b_page,
        stride_b_row,
        PR,
        FIRST,
        y.dtype.element_ty,
    )
    b_next, owner_next, row_next = rows_of_b(
        b,
        entries,
        i_tile,
        FIRST,
        i_n,
        m_n,
        num_rows,
        capacity,
        stride_b_page,
        stride_b_row,
        PR,
        BR,
        y.dtype.element_ty,
    )
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    if num_rows == 0:
        return
    plane = tl.cast(NS * max_rank, tl.int64) * num_tokens
    # Tokens without adapter are neither read nor written: they keep their bits.
    m_y = (slot >= 0)[:, None] & m_n[None, :]
    p_y = y + token[:, None] * stride_y + i_n[None, :]
    b_y = tl.load(p_y, mask=m_y, other=0.0)
    b_h = shrunk_rows(h, token, slot, owner, row, i_slice, plane, max_rank, NS, SPLIT)
    acc = tl.zeros((BT, BN) if WIDE else (BN, BT), dtype=tl.float32)
    acc = add_rows(acc, b_b, b_h, UPCAST, WIDE)
    acc = add_delta(
        acc,
        b_next,
        owner_next,
        row_next,
        FIRST,
        h,
        b,
        entries,
        i_tile,
        token,
        slot,
        i_slice,
        i_n,
        m_n,
        num_rows,
        capacity,
        plane,
        max_rank,
        stride_b_page,
        stride_b_row,
        NS,
        PR,
        BR,
        SPLIT,
        y.dtype.element_ty,
        UPCAST,
        WIDE,
    )
    out = b_y.to(tl.float32) + (acc if WIDE else tl.trans(acc))
    tl.store(p_y, out.to(y.dtype.element_ty), mask=m_y)
