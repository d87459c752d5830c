"""A step's prefill chunks as launches: tiles of rows, a long prefix of few tiles cut into parts."""

from collections.abc import Sequence
from dataclasses import dataclass

# A chunk is cut into as many items (tile, part, key head) as an H200 takes at once, or fewer.
MAX_ITEMS = 128
MAX_PARTS = 32
# Of the scratch of a launch, 64 KiB each at most. A step with more cut chunks gets more launches.
MAX_CUT_ITEMS = 2048
# That one launch has scratch for, whatever their lengths.
MAX_CHUNKS = MAX_CUT_ITEMS // MAX_ITEMS


@dataclass(frozen=True)
class Cut:
    """What chunks are cut by: tiles of block_m rows (query, head of the group), of which a part
    takes steps of block_n positions, in all at least min_split but for an only part.
    """

    block_m: int
    block_n: int
    min_split: int
    group: int
    num_kv_heads: int

    def num_tiles(self, num_queries: int) -> int:
        return -(-num_queries * self.group // self.block_m)

    def num_parts(self, num_queries: int, num_positions: int) -> int:
        """By the chunk's own lengths alone, whoever else is in the step: the kernels' own rule.

        Parts are equal but for the last, and begin in the prefix: every row has something in each.
        """
        num_items = self.num_tiles(num_queries) * self.num_kv_heads
        most = min(MAX_ITEMS // num_items, MAX_PARTS, num_positions // self.min_split)
        size = -(-num_positions // (self.block_n * max(most, 1))) * self.block_n
        return (num_positions - num_queries) // size + 1


@dataclass(frozen=True)
class Launch:
    """Chunks first to last; a unit is a part of a tile, a slot is scratch for one of several."""

    first: int
    last: int
    num_units: int
    num_slots: int


def launches(cut: Cut, chunks: Sequence[tuple[int, int]]) -> list[Launch]:
    """chunks: (queries, positions), in order."""
    made, first, units, slots = [], 0, 0, 0
    for last, chunk in enumerate(chunks):
        num_tiles, num_parts = cut.num_tiles(chunk[0]), cut.num_parts(*chunk)
        more = num_tiles * num_parts if num_parts > 1 else 0
        if slots and (slots + more) * cut.num_kv_heads > MAX_CUT_ITEMS:
            made.append(Launch(first, last, units, slots))
            first, units, slots = last, 0, 0
        units += num_tiles * num_parts
        slots += more
    return [*made, Launch(first, len(chunks), units, slots)]


def launch_of_any(cut: Cut, num_chunks: int, num_queries: int) -> Launch:
    """For up to num_chunks that only the device knows, of num_queries together: as many units and
    slots as they may need.
    """
    num_slots = min(num_chunks, MAX_CHUNKS) * (MAX_ITEMS // cut.num_kv_heads)
    return Launch(0, num_chunks, cut.num_tiles(num_queries) + num_chunks + num_slots, num_slots)
