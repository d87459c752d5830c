"""Which tile a program takes next: every group of warps of it finds the same, by itself."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def num_rounds(total):
    return (total + gl.num_programs(0) - 1) // gl.num_programs(0)


@gluon.jit
def item_of(number):
    """A program's number-th item: (tile, key head), heads fastest.

    Every second round is dealt backwards. A sequence's last rows come first and see the most, so
    whoever had the longest tile of a round gets the shortest of the next.
    """
    place = gl.program_id(0)
    if number % 2 == 1:
        place = gl.num_programs(0) - 1 - place
    return number * gl.num_programs(0) + place


@gluon.jit
def count_queries(query_start, i_seq):
    return gl.load(query_start + i_seq + 1) - gl.load(query_start + i_seq)


@gluon.jit
def find_sequence(tile, query_start, i_seq, before, GROUP: gl.constexpr, TILE: gl.constexpr):
    """(a tile's sequence, tiles of those before it), searched on from the last tile's."""
    num_tiles = (count_queries(query_start, i_seq) * GROUP + TILE - 1) // TILE
    while tile >= before + num_tiles:
        before += num_tiles
        i_seq += 1
        num_tiles = (count_queries(query_start, i_seq) * GROUP + TILE - 1) // TILE
    return i_seq, before


@gluon.jit
def find_rows(
    tile, query_start, context_lens, i_seq, before, GROUP: gl.constexpr, TILE: gl.constexpr
):
    """(first row, queries, positions before them, positions that the tile's last row sees)."""
    num_queries = count_queries(query_start, i_seq)
    num_tiles = (num_queries * GROUP + TILE - 1) // TILE
    first_row = (before + num_tiles - 1 - tile) * TILE
    prefix = gl.load(context_lens + i_seq) - num_queries
    end = prefix + gl.minimum((first_row + TILE - 1) // GROUP + 1, num_queries)
    return first_row, num_queries, prefix, end
