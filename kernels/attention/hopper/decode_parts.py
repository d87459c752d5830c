"""The parts of a step's decodes: what decode.py of the room above does, for groups of warps."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def part_size(length, MIN_SPLIT: gl.constexpr, MAX_SPLITS: gl.constexpr, BLOCK_N: gl.constexpr):
    """Positions of each part of a sequence: by its own length alone, whoever else is there."""
    longest = (length + MAX_SPLITS - 1) // MAX_SPLITS
    longest = (longest + BLOCK_N - 1) // BLOCK_N * BLOCK_N
    size = gl.maximum(longest, MIN_SPLIT)
    num_parts = gl.maximum((length + size - 1) // size, 1)
    even = (length + num_parts - 1) // num_parts
    return gl.maximum((even + BLOCK_N - 1) // BLOCK_N, 1) * BLOCK_N


@gluon.jit
def add(a, b):
    return a + b


@gluon.jit
def count_parts(
    context_lens,
    num_seqs,
    max_positions,
    BLOCK_SEQS: gl.constexpr,
    MIN_SPLIT: gl.constexpr,
    MAX_SPLITS: gl.constexpr,
    BLOCK_N: gl.constexpr,
):
    """Of every sequence [BLOCK_SEQS]: (its number, its parts, parts of all up to it)."""
    warps: gl.constexpr = gl.num_warps()
    each: gl.constexpr = max(BLOCK_SEQS // (32 * warps), 1)
    layout: gl.constexpr = gl.BlockedLayout([each], [32], [warps], [0])
    i_b = gl.arange(0, BLOCK_SEQS, layout)
    is_seq = i_b < num_seqs
    b_len = gl.minimum(gl.load(context_lens + i_b, mask=is_seq, other=0), max_positions)
    b_size = part_size(b_len, MIN_SPLIT, MAX_SPLITS, BLOCK_N)
    b_parts = gl.where(is_seq, gl.maximum((b_len + b_size - 1) // b_size, 1), 0)
    return i_b, b_parts, gl.associative_scan(b_parts, 0, add)


@gluon.jit
def find_part(
    unit,
    counted,
    context_lens,
    max_positions,
    MIN_SPLIT: gl.constexpr,
    MAX_SPLITS: gl.constexpr,
    BLOCK_N: gl.constexpr,
):
    """The unit-th part of all: (sequence, part, parts of the sequence, begin, end)."""
    i_b, b_parts, b_end = counted
    i_seq = gl.sum((b_end <= unit).to(gl.int32), 0)
    i_part = unit - gl.sum(gl.where(i_b < i_seq, b_parts, 0), 0)
    length = gl.minimum(gl.load(context_lens + i_seq), max_positions)
    size = part_size(length, MIN_SPLIT, MAX_SPLITS, BLOCK_N)
    num_parts = gl.maximum((length + size - 1) // size, 1)
    return i_seq, i_part, num_parts, i_part * size, gl.minimum(i_part * size + size, length)
