"""Which tile a program takes next, drawn by its copying warp, and which rows that is."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention.hopper.barrier import thread_barrier


@gluon.jit
def first_item():
    """An item is (tile, key head), heads fastest; a sequence's last rows, which see most, first."""
    return gl.program_id(0)


@gluon.jit
def draw_item(drawn):
    """The next item that no program has: programs are as fast as their tiles are short."""
    return gl.num_programs(0) + gl.atomic_add(drawn, 1, sem="relaxed")


@gluon.jit
def end_draws(drawn):
    """Once in each program, which draws no more: the last one makes both counters zero again."""
    ended = gl.atomic_add(drawn + 1, 1, sem="acq_rel")
    if ended == gl.num_programs(0) - 1:
        gl.store(drawn, 0)
        gl.store(drawn + 1, 0)


@gluon.jit
def tell_item(slot, item):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    slot.store(gl.full([1], 0, gl.int32, layout) + item)
    # Every thread stores it; one of them fills the barrier afterwards.
    thread_barrier()


@gluon.jit
def told_item(slot):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    return gl.sum(slot.load(layout), 0)


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
