"""The adapters' share of one or two column blocks: one walk over the tile's list of rank rows.

In decode h comes in the list's own order (list_kernel.py): no row of it is masked, summed or looked
up here, where every column block would do so again. In tiles of many tokens it comes as shrink left
it. The first rows are few, for the batch of one adapter.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl

from kernels.lora import table
from kernels.lora.tile import listed_rows

# The least that tensor cores take, and what every slot of a list is filled up to.
FIRST = tl.constexpr(16)
WIDE_TOKENS = tl.constexpr(table.WIDE_TOKENS)


@triton.jit
def rows_at(
    first,
    b,
    entries,
    i_tile,
    i_n0,
    i_n1,
    m_n,
    num_rows,
    capacity,
    stride_b_page,
    stride_b_row,
    PR: tl.constexpr,
    BR: tl.constexpr,
    PAIR: tl.constexpr,
):
    """BR rows of the list from first: B at columns i_n0 and, if PAIR, i_n1 [BN] of one mask; whose
    they are, and which of their owner's."""
    i_row = first + tl.arange(0, BR)
    page, owner, row, i_place, m_row = listed_rows(entries, i_tile, i_row, num_rows, capacity, PR)
    p_b = b + (page * stride_b_page + i_place * stride_b_row)[:, None]
    m_b = m_row[:, None] & m_n[None, :]
    b_b0 = tl.load(p_b + i_n0[None, :], mask=m_b, other=0.0)
    b_b1 = b_b0
    if PAIR:
        b_b1 = tl.load(p_b + i_n1[None, :], mask=m_b, other=0.0)
    return b_b0, b_b1, owner, row


@triton.jit
def rows_of_h(
    h,
    i_tile,
    i_slice,
    first,
    token,
    slot,
    owner,
    row,
    max_rows,
    NS: tl.constexpr,
    BT: tl.constexpr,
    BR: tl.constexpr,
    LISTED: tl.constexpr,
):
    """h [BT, BR] at BR rows of the list from first, zero where a row is another token's.

    h [tiles, NS, BT, max_rows] if LISTED, else [T, NS, max_rows].
    """
    if LISTED:
        o_row = ((i_tile.to(tl.int64) * NS + i_slice) * BT + tl.arange(0, BT)) * max_rows + first
        b_h = tl.load(h + o_row[:, None] + tl.arange(0, BR)[None, :])
    else:
        p_h = h + ((token * NS + i_slice) * max_rows)[:, None] + row[None, :]
        b_h = tl.load(p_h, mask=slot[:, None] == owner[None, :], other=0.0)
    return b_h


@triton.jit
def add_rows(acc, b_b, b_h, WIDE: tl.constexpr, DTYPE: tl.constexpr, UPCAST: tl.constexpr):
    """acc fp32 += b_h b_b, multiplied in DTYPE: [BT, BN] if WIDE, else its transpose [BN, BT].

    Rows stored in fp8 are converted, which is exact.
    """
    b_b = b_b.to(DTYPE)
    b_h = b_h.to(DTYPE)
    if UPCAST:
        b_b = b_b.to(tl.float32)
        b_h = b_h.to(tl.float32)
    if WIDE:
        acc = tl.dot(b_h, b_b, acc, input_precision="ieee")
    else:
        acc = tl.dot(tl.trans(b_b), tl.trans(b_h), acc, input_precision="ieee")
    return acc


@triton.jit
def add_block(
    acc_0,
    acc_1,
    b_b0,
    b_b1,
    owner,
    row,
    first,
    h,
    i_tile,
    token,
    slot,
    slice_0,
    slice_1,
    max_rows,
    NS: tl.constexpr,
    BT: tl.constexpr,
    BR: tl.constexpr,
    PAIR: tl.constexpr,
    ONE_SLICE: tl.constexpr,
    LISTED: tl.constexpr,
    DTYPE: tl.constexpr,
    UPCAST: tl.constexpr,
):
    WIDE: tl.constexpr = BT >= WIDE_TOKENS
    b_h = rows_of_h(
        h, i_tile, slice_0, first, token, slot, owner, row, max_rows, NS, BT, BR, LISTED
    )
    acc_0 = add_rows(acc_0, b_b0, b_h, WIDE, DTYPE, UPCAST)
    if PAIR:
        if not ONE_SLICE:
            b_h = rows_of_h(
                h, i_tile, slice_1, first, token, slot, owner, row, max_rows, NS, BT, BR, LISTED
            )
        acc_1 = add_rows(acc_1, b_b1, b_h, WIDE, DTYPE, UPCAST)
    return acc_0, acc_1


@triton.jit
def delta(
    b_f0,
    b_f1,
    f_owner,
    f_row,
    h,
    b,
    entries,
    i_tile,
    token,
    slot,
    slice_0,
    slice_1,
    i_n0,
    i_n1,
    m_n,
    num_rows,
    capacity,
    max_rows,
    stride_b_page,
    stride_b_row,
    NS: tl.constexpr,
    PR: tl.constexpr,
    BT: tl.constexpr,
    BN: tl.constexpr,
    BR: tl.constexpr,
    PAIR: tl.constexpr,
    ONE_SLICE: tl.constexpr,
    LISTED: tl.constexpr,
    DTYPE: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Two [BT, BN] fp32: Σ h[token, slice, row] B[row, i_n]. ONE_SLICE: slice_1 is slice_0.

    Without PAIR the second is zero. b_f0 … f_row: rows_at of the FIRST rows, safe before gdc_wait.
    h: see rows_of_h. Multiplied in DTYPE.
    """
    WIDE: tl.constexpr = BT >= WIDE_TOKENS
    acc_0, acc_1 = add_block(
        tl.zeros((BT, BN) if WIDE else (BN, BT), dtype=tl.float32),
        tl.zeros((BT, BN) if WIDE else (BN, BT), dtype=tl.float32),
        b_f0,
        b_f1,
        f_owner,
        f_row,
        0,
        h,
        i_tile,
        token,
        slot,
        slice_0,
        slice_1,
        max_rows,
        NS,
        BT,
        FIRST,
        PAIR,
        ONE_SLICE,
        LISTED,
        DTYPE,
        UPCAST,
    )
    for first in range(FIRST, num_rows, BR):
        b_b0, b_b1, owner, row = rows_at(
            first,
            b,
            entries,
            i_tile,
            i_n0,
            i_n1,
            m_n,
            num_rows,
            capacity,
            stride_b_page,
            stride_b_row,
            PR,
            BR,
            PAIR,
        )
        acc_0, acc_1 = add_block(
            acc_0,
            acc_1,
            b_b0,
            b_b1,
            owner,
            row,
            first,
            h,
            i_tile,
            token,
            slot,
            slice_0,
            slice_1,
            max_rows,
            NS,
            BT,
            BR,
            PAIR,
            ONE_SLICE,
            LISTED,
            DTYPE,
            UPCAST,
        )
    if not WIDE:
        acc_0 = tl.trans(acc_0)
        acc_1 = tl.trans(acc_1)
    return acc_0, acc_1
