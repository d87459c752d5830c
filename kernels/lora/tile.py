"""What the Triton kernels share: a tile's tokens, the rank rows listed for it, its column blocks.

A tile is a few tokens, neighbours in the order by adapter; its list names the rank pages of
every adapter among them. All rows meet all tokens of the tile on tensor cores; a mask keeps each
token's own. So a row is read once a tile whether it serves one token of it or all.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl


@triton.jit
def tile_tokens(order, slots, i_tile, num_tokens, TILE: tl.constexpr, BT: tl.constexpr):
    """The tile's TILE tokens in a block [BT], which are real, and their slots (-1 for none)."""
    i_t = i_tile * TILE + tl.arange(0, BT)
    m_t = (i_t < num_tokens) & (tl.arange(0, BT) < TILE)
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
