"""Which tile or part of one a program takes next: found by its copying warp, told to the others."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention.hopper.barrier import thread_barrier

# Integers that the consumers are told of an item.
NUM_FIELDS = gl.constexpr(9)


@gluon.jit
def first_item():
    """An item is (tile or part, key head), heads fastest; a sequence's last rows first."""
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
def tell(slots, q_stage, fields):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    for i in gl.static_range(len(fields)):
        field = gl.full([1], 0, gl.int32, layout) + fields[i]
        slots.index(q_stage * NUM_FIELDS + i).store(field)
    # Every thread stores them; one of them fills the barrier afterwards.
    thread_barrier()


@gluon.jit
def told(slots, q_stage, i: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    return gl.sum(slots.index(q_stage * NUM_FIELDS + i).load(layout), 0)


@gluon.jit
def chunk_of(read, i_seq):
    """(first token, queries, positions), inside the step's tokens and tables whatever is there."""
    query_start, context_lens, _, num_tokens, max_positions, _, _ = read
    first_token = gl.maximum(gl.load(query_start + i_seq), 0)
    end = gl.minimum(gl.load(query_start + i_seq + 1), num_tokens)
    context = gl.maximum(gl.minimum(gl.load(context_lens + i_seq), max_positions), 1)
    return first_token, gl.maximum(end - first_token, 0), context


@gluon.jit
def count_parts(num_queries, context, shape: gl.constexpr):
    """(tiles, parts of each, positions of a part): the rule of chunks.Cut."""
    HKV: gl.constexpr = shape[0]
    GROUP: gl.constexpr = shape[1]
    TILE: gl.constexpr = shape[2]
    BLOCK_N: gl.constexpr = shape[3]
    MIN_SPLIT: gl.constexpr = shape[4]
    MAX_ITEMS: gl.constexpr = shape[5]
    MAX_PARTS: gl.constexpr = shape[6]
    num_tiles = (num_queries * GROUP + TILE - 1) // TILE
    num_parts = num_tiles * 0 + 1
    size = context
    if MIN_SPLIT > 0:
        most = gl.minimum(MAX_ITEMS // (gl.maximum(num_tiles, 1) * HKV), MAX_PARTS)
        most = gl.maximum(gl.minimum(most, context // MIN_SPLIT), 1)
        step = most * BLOCK_N
        size = (context + step - 1) // step * BLOCK_N
        num_parts = gl.maximum(context - num_queries, 0) // size + 1
    return num_tiles, num_parts, size


@gluon.jit
def count_units(read, i_seq, shape: gl.constexpr):
    """(units, slots) of a sequence: parts of all tiles; as many places in the scratch, if cut."""
    _, num_queries, context = chunk_of(read, gl.minimum(i_seq, read[2] - 1))
    num_tiles, num_parts, _ = count_parts(num_queries, context, shape)
    num_units = num_tiles * num_parts
    return num_units, gl.where(num_parts > 1, num_units, 0)


@gluon.jit
def find_sequence(unit, read, i_seq, before, slots, shape: gl.constexpr):
    """(a unit's sequence, units and slots of those before it), searched on from the last unit's.

    Behind the last sequence, or the first without queries, it is num_seqs: there is no such unit.
    """
    _, _, num_seqs, _, _, most_units, _ = read
    num_units, num_slots = count_units(read, i_seq, shape)
    while (unit >= before + num_units) & (i_seq < num_seqs) & (unit < most_units):
        before += num_units
        slots += num_slots
        i_seq = gl.where(num_units > 0, i_seq + 1, num_seqs)
        num_units, num_slots = count_units(read, i_seq, shape)
    return i_seq, before, slots


@gluon.jit
def find_rows(unit, read, i_seq, before, slots, shape: gl.constexpr):
    """What the consumers are told of it, but for the key head.

    (position of the first row, positions from, to, token of the first row, rows, slot of the tile's
    first part, part, parts). Should the units and slots of the launch not be what the lengths make
    of them, a tile that lacks some is not cut.
    """
    GROUP: gl.constexpr = shape[1]
    TILE: gl.constexpr = shape[2]
    _, _, _, _, _, num_units, num_slots = read
    first_token, num_queries, context = chunk_of(read, i_seq)
    num_tiles, num_parts, size = count_parts(num_queries, context, shape)
    i_back = (unit - before) // num_parts
    i_part = (unit - before) % num_parts
    slot = slots + i_back * num_parts
    is_whole = (before + (i_back + 1) * num_parts <= num_units) & (slot + num_parts <= num_slots)
    num_parts = gl.where(is_whole, num_parts, 1)
    i_part = gl.where(is_whole, i_part, 0)
    i_query = (num_tiles - 1 - i_back) * TILE // GROUP
    prefix = gl.maximum(context - num_queries, 0)
    end = gl.minimum(prefix + gl.minimum(i_query + TILE // GROUP, num_queries), context)
    begin = i_part * size
    end = gl.where(i_part + 1 < num_parts, begin + size, gl.maximum(end, begin + 1))
    num_rows = (num_queries - i_query) * GROUP
    token = first_token + i_query
    return prefix + i_query, begin, end, token, num_rows, slot, i_part, num_parts
