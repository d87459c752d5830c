"""What the Triton kernels share: a tile's tokens, the rank rows listed for it, their share of y.

A tile is up to BT tokens, neighbours in the order by adapter; its list names the rank pages of
every adapter among them. All rows meet all tokens of the tile on tensor cores; a mask keeps each
token's own. So a row is read once a tile whether it serves one token of it or all.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl


@triton.jit
def tile_tokens(order, slots, i_tile, num_tokens, BT: tl.constexpr):
    """The tile's tokens [BT], which of them are real, and their slots (-1 for none)."""
    i_t = i_tile * BT + tl.arange(0, BT)
    m_t = i_t < num_tokens
    token = tl.load(order + i_t, mask=m_t, other=0).to(tl.int64)
    slot = tl.load(slots + i_t, mask=m_t, other=-1)
    return token, m_t, slot


@triton.jit
def listed_rows(entries, i_tile, i_row, num_rows, capacity, PR: tl.constexpr):
    """Rows i_row of the tile's list: page, owner (-2: none), its rank row, place in page, readable.

    entries [tiles, capacity] int64: see TilePlan. No load waits for num_rows. PR rows are
    neighbours of one page: told to the compiler, so that loads along them are wide.
    """
    m_row = i_row < num_rows
    p_entry = entries + i_tile * capacity + i_row // PR
    entry = tl.load(p_entry, mask=i_row < capacity * PR, other=0)
    i_place = i_row % PR
    owner = (entry >> 16).to(tl.int32) & 0xFFFF
    owner = tl.where(m_row & (owner != 0xFFFF), owner, -2)
    row = ((entry >> 8).to(tl.int32) & 0xFF) * PR + i_place
    m_row &= i_place < (entry.to(tl.int32) & 0xFF)
    row = tl.max_contiguous(tl.multiple_of(row, PR), PR)
    return entry >> 32, tl.max_constancy(owner, PR), row, i_place, m_row


@triton.jit
def column_block(i_block, size_0, size_1, size_2, NS: tl.constexpr, BN: tl.constexpr):
    """Slice, columns of y [BN] and which are real, of block i_block: none crosses a slice."""
    i_slice, start, size = 0, 0, size_0
    if NS > 1:
        blocks_0 = tl.cdiv(size_0, BN)
        if i_block >= blocks_0:
            i_block -= blocks_0
            i_slice, start, size = 1, size_0, size_1
            if NS > 2:
                blocks_1 = tl.cdiv(size_1, BN)
                if i_block >= blocks_1:
                    i_block -= blocks_1
                    i_slice, start, size = 2, size_0 + size_1, size_2
    i_n = i_block * BN + tl.arange(0, BN)
    return i_slice, start + i_n, i_n < size


@triton.jit
def rows_of_b(
    b,
    entries,
    i_tile,
    first_row,
    i_n,
    m_n,
    num_rows,
    capacity,
    stride_b_page,
    stride_b_row,
    PR: tl.constexpr,
    BR: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """The tile's rows from first_row: B [BR, BN] at columns i_n, owners [BR], their rows [BR].

    DTYPE: what to multiply in; rows stored in fp8 are converted, which is exact.
    """
    i_row = first_row + tl.arange(0, BR)
    page, owner, row, i_place, m_row = listed_rows(entries, i_tile, i_row, num_rows, capacity, PR)
    p_b = b + (page * stride_b_page + i_place * stride_b_row)[:, None] + i_n[None, :]
    b_b = tl.load(p_b, mask=m_row[:, None] & m_n[None, :], other=0.0)
    return b_b.to(DTYPE), owner, row


@triton.jit
def shrunk_rows(
    h, token, slot, owner, row, i_slice, plane, max_rank, NS: tl.constexpr, SPLIT: tl.constexpr
):
    """h [BT, BR] of each token at rows that are its own, 0 elsewhere: the sum of its shares.

    h [SPLIT, T, NS, max_rank]; plane: T · NS · max_rank.
    """
    p_h = h + ((token * NS + i_slice) * max_rank)[:, None] + row[None, :]
    m_own = slot[:, None] == owner[None, :]
    b_h = tl.load(p_h, mask=m_own, other=0.0)
    for i in tl.static_range(1, SPLIT):
        b_h += tl.load(p_h + i * plane, mask=m_own, other=0.0)
    return b_h


@triton.jit
def add_rows(acc, b_b, b_h, UPCAST: tl.constexpr, WIDE: tl.constexpr = False):
    """acc fp32 += b_h b_b in b_b's dtype: [BT, BN] if WIDE, else its transpose [BN, BT].

    A tensor core's step is at least 64 on its first side: columns there when tokens are few.
    """
    b_h = b_h.to(b_b.dtype)
    if UPCAST:
        b_b = b_b.to(tl.float32)
        b_h = b_h.to(tl.float32)
    if WIDE:
        acc = tl.dot(b_h, b_b, acc, input_precision="ieee")
    else:
        acc = tl.dot(tl.trans(b_b), tl.trans(b_h), acc, input_precision="ieee")
    return acc


@triton.jit
def add_delta(
    acc,
    b_next,
    owner_next,
    row_next,
    first_row,
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
    NS: tl.constexpr,
    PR: tl.constexpr,
    BR: tl.constexpr,
    SPLIT: tl.constexpr,
    DTYPE: tl.constexpr,
    UPCAST: tl.constexpr,
    WIDE: tl.constexpr = False,
):
    """acc (as in add_rows) += Σ B[row, i_n] h[token, row] over the tile's rows from first_row on.

    i_n [BN]: columns of B, all in slice i_slice. The next three: rows_of_b of the BR rows from
    first_row, on their way already; so is each later block while the one before it is multiplied.
    """
    for block_row in range(first_row, num_rows, BR):
        b_b, owner, row = b_next, owner_next, row_next
        b_next, owner_next, row_next = rows_of_b(
            b,
            entries,
            i_tile,
            block_row + BR,
            i_n,
            m_n,
            num_rows,
            capacity,
            stride_b_page,
            stride_b_row,
            PR,
            BR,
            DTYPE,
        )
        b_h = shrunk_rows(h, token, slot, owner, row, i_slice, plane, max_rank, NS, SPLIT)
        acc = add_rows(acc, b_b, b_h, UPCAST, WIDE)
    return acc
