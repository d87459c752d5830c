"""The adapters' share of one or two column blocks: one walk over the tile's list of rank rows.

h comes in the list's own order (rows_kernel.py): no row of it is masked, summed or looked up here,
where every column block would do so again. The first rows are few, for the batch of one adapter.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl

from kernels.lora.tile import add_rows, listed_rows

# The least that tensor cores take, and what every slot of a list is filled up to.
FIRST = tl.constexpr(16)


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
    """BR rows of the list from first: B at columns i_n0 and, if PAIR, i_n1 [BN] of one mask."""
    i_row = first + tl.arange(0, BR)
    page, _, _, i_place, m_row = listed_rows(entries, i_tile, i_row, num_rows, capacity, PR)
    p_b = b + (page * stride_b_page + i_place * stride_b_row)[:, None]
    m_b = m_row[:, None] & m_n[None, :]
    b_b0 = tl.load(p_b + i_n0[None, :], mask=m_b, other=0.0)
    b_b1 = b_b0
    if PAIR:
        b_b1 = tl.load(p_b + i_n1[None, :], mask=m_b, other=0.0)
    return b_b0, b_b1


@triton.jit
def add_block(
    acc_0,
    acc_1,
    b_b0,
    b_b1,
    p_h0,
    p_h1,
    PAIR: tl.constexpr,
    ONE_SLICE: tl.constexpr,
    UPCAST: tl.constexpr,
):
    b_h = tl.load(p_h0)
    acc_0 = add_rows(acc_0, b_b0.to(b_h.dtype), b_h, UPCAST)
    if PAIR:
        if not ONE_SLICE:
            b_h = tl.load(p_h1)
        acc_1 = add_rows(acc_1, b_b1.to(b_h.dtype), b_h, UPCAST)
    return acc_0, acc_1


@triton.jit
def delta(
    b_f0,
    b_f1,
    h,
    b,
    entries,
    i_tile,
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
    UPCAST: tl.constexpr,
):
    """Two [BT, BN] fp32: Σ h[i_tile, slice, :, row] B[row, i_n]. ONE_SLICE: slice_1 is slice_0.

    Without PAIR the second is zero. b_f0, b_f1: rows_at of the FIRST rows, safe before gdc_wait.
    h [tiles, NS, BT, max_rows].
    """
    o_tile = (i_tile.to(tl.int64) * NS * BT + tl.arange(0, BT)) * max_rows
    p_h0 = h + (o_tile + slice_0 * BT * max_rows)[:, None]
    p_h1 = h + (o_tile + slice_1 * BT * max_rows)[:, None]
    i_f = tl.arange(0, FIRST)[None, :]
    acc_0, acc_1 = add_block(
        tl.zeros((BN, BT), dtype=tl.float32),
        tl.zeros((BN, BT), dtype=tl.float32),
        b_f0,
        b_f1,
        p_h0 + i_f,
        p_h1 + i_f,
        PAIR,
        ONE_SLICE,
        UPCAST,
    )
    i_r = tl.arange(0, BR)[None, :]
    for first in range(FIRST, num_rows, BR):
        b_b0, b_b1 = rows_at(
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
            p_h0 + first + i_r,
            p_h1 + first + i_r,
            PAIR,
            ONE_SLICE,
            UPCAST,
        )
    return tl.trans(acc_0), tl.trans(acc_1)
