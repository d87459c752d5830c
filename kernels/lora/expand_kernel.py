"""y[t] += B h[t]: a program owns a block of columns for a tile of tokens, and all its rank rows.

The first rows, all there are when the tile has one adapter of a small rank, are on their way before
the kernel's turn; the others follow in wide blocks, all loads of a block in flight at once.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.lora.delta import FIRST, delta, rows_at
from kernels.lora.tile import column_block, tile_tokens


@triton.jit(do_not_specialize=["num_tokens", "capacity"])
def lora_expand_kernel(
    # read: shrunk tokens (see delta.py), rank rows
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
    max_rows,
    # strides
    stride_b_page,
    stride_b_row,
    stride_y,
    # meta
    NS: tl.constexpr,
    PR: tl.constexpr,
    TILE: tl.constexpr,
    BT: tl.constexpr,
    BN: tl.constexpr,
    BR: tl.constexpr,
    LISTED: tl.constexpr,
    UPCAST: tl.constexpr,
    PDL: tl.constexpr,
):
    i_tile = tl.program_id(0)
    # The plan and B were complete before the kernel before this one began (see kernels/launch.py):
    # they are on their way while it ends. What it wrote, h or y, is read after the wait.
    num_rows = tl.load(num_pages + i_tile) * PR
    token, _, slot = tile_tokens(order, slots, i_tile, num_tokens, TILE, BT)
    i_slice, i_n, m_n = column_block(tl.program_id(1), size_0, size_1, size_2, NS, BN)
    b_f, _, f_owner, f_row = rows_at(
        0,
        b,
        entries,
        i_tile,
        i_n,
        i_n,
        m_n,
        num_rows,
        capacity,
        stride_b_page,
        stride_b_row,
        PR,
        FIRST,
        False,
    )
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    if num_rows == 0:
        return
    # Tokens without adapter are neither read nor written: they keep their bits.
    m_y = (slot >= 0)[:, None] & m_n[None, :]
    p_y = y + token[:, None] * stride_y + i_n[None, :]
    b_y = tl.load(p_y, mask=m_y, other=0.0)
    b_delta, _ = delta(
        b_f,
        b_f,
        f_owner,
        f_row,
        h,
        b,
        entries,
        i_tile,
        token,
        slot,
        i_slice,
        i_slice,
        i_n,
        i_n,
        m_n,
        num_rows,
        capacity,
        max_rows,
        stride_b_page,
        stride_b_row,
        NS,
        PR,
        BT,
        BN,
        BR,
        False,
        True,
        LISTED,
        y.dtype.element_ty,
        UPCAST,
    )
    out = b_y.to(tl.float32) + b_delta
    tl.store(p_y, out.to(y.dtype.element_ty), mask=m_y)
