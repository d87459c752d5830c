"""How prefill chunks become items: the host's count of them, and what the Gluon kernel finds.

The schedule is plain integers, so its functions run here as Python; their kernel runs on a GPU.
"""

import types
from dataclasses import dataclass
from typing import Any

import pytest

from kernels.attention.chunks import (
    MAX_CHUNKS,
    MAX_ITEMS,
    MAX_PARTS,
    Cut,
    Launch,
    launch_of_any,
    launches,
)

CUT = Cut(block_m=128, block_n=128, min_split=512, group=4, num_kv_heads=8)
SHAPE = (8, 4, 128, 128, 512, MAX_ITEMS, MAX_PARTS)


@pytest.mark.parametrize(
    ("chunk", "sizes"),
    [
        ((16, 8192), (1, 16)),
        ((64, 8192), (2, 8)),
        ((128, 8192), (4, 4)),
        ((256, 8192), (8, 2)),
        ((288, 8192), (9, 1)),
        ((8192, 8192), (256, 1)),
        ((16, 1000), (1, 1)),
        ((16, 1024), (1, 2)),
        ((1, 500_000), (1, 16)),
        ((100, 100), (4, 1)),
    ],
    ids=str,
)
def test_a_chunk_is_cut_to_fill_the_device_once(
    chunk: tuple[int, int], sizes: tuple[int, int]
) -> None:
    assert (CUT.num_tiles(chunk[0]), CUT.num_parts(*chunk)) == sizes


def test_a_launch_has_bounded_scratch() -> None:
    made = launches(CUT, [(16, 8192)] * 40 + [(500, 500)] * 2)
    assert made == [
        Launch(0, 16, 256, 256),
        Launch(16, 32, 256, 256),
        Launch(32, 42, 8 * 16 + 2 * 16, 128),
    ]
    assert launches(CUT, [(16, 16)] * 40 + [(500, 500)] * 2) == [Launch(0, 42, 40 + 2 * 16, 0)]


CHUNKS = ((16, 8192), (64, 64), (300, 9000), (1, 5000), (128, 1300), (90, 700), (2000, 2000))


def test_the_kernel_finds_what_the_host_counted(schedule: Any) -> None:
    """Every (query, position) pair once, every slot of the scratch once."""
    pairs, slots = walk(schedule, CHUNKS, launches(CUT, CHUNKS)[0])
    assert pairs == {
        (token, row): list(range(context - queries + row + 1))
        for token, (queries, context) in zip(starts(CHUNKS), CHUNKS, strict=False)
        for row in range(queries)
    }
    assert sorted(slots) == list(range(len(slots))) and slots


def test_it_finds_them_too_where_the_host_knows_bounds_alone(schedule: Any) -> None:
    """Those that are not there have no queries, and end the search."""
    padded = (*CHUNKS, *[(0, 0)] * (MAX_CHUNKS - len(CHUNKS)))
    any_step = launch_of_any(CUT, MAX_CHUNKS, 4096)
    found = walk(schedule, padded, any_step)
    assert found == walk(schedule, CHUNKS, launches(CUT, CHUNKS)[0])
    assert walk(schedule, ((0, 0),) * 2, any_step) == ({}, [])


def test_one_launch_has_scratch_for_whatever_its_chunks_are(schedule: Any) -> None:
    for chunk in ((16, 8192), (1, 10_000), (256, 2048)):
        chunks = (chunk,) * MAX_CHUNKS
        any_step = launch_of_any(CUT, MAX_CHUNKS, chunk[0] * MAX_CHUNKS)
        assert walk(schedule, chunks, any_step) == walk(schedule, chunks, launches(CUT, chunks)[0])


@pytest.mark.parametrize("told", [((16, 100),) * 7, CHUNKS[:6], ((2000, 9000),) * 7], ids=str)
def test_the_kernel_stays_inside_whatever_the_host_counted(
    schedule: Any, told: tuple[tuple[int, int], ...]
) -> None:
    walk(schedule, CHUNKS, launches(CUT, told)[0])


@dataclass(frozen=True)
class Pointer:
    """To integers; to read outside of them is an error."""

    values: list[int]
    place: int = 0

    def __add__(self, steps: int) -> "Pointer":
        return Pointer(self.values, self.place + steps)

    def load(self) -> int:
        assert self.place >= 0
        return self.values[self.place]


def starts(chunks: tuple[tuple[int, int], ...]) -> list[int]:
    return [sum(queries for queries, _ in chunks[:i]) for i in range(len(chunks) + 1)]


def walk(
    schedule: Any, chunks: tuple[tuple[int, int], ...], launch: Launch
) -> tuple[dict[tuple[int, int], list[int]], list[int]]:
    """(positions seen by (first token, query), slots written) of all units, on lengths chunks."""
    first, context = starts(chunks), [c for _, c in chunks]
    sizes = (len(chunks), first[-1], 10_000, launch.num_units, launch.num_slots)
    read = (Pointer(first), Pointer(context), *sizes)
    pairs: dict[tuple[int, int], list[int]] = {}
    slots = []
    for unit in range(launch.num_units):
        state = schedule.find_sequence(unit, read, 0, 0, 0, SHAPE)
        if state[0] == len(chunks):
            continue
        found = schedule.find_rows(unit, read, *state, SHAPE)
        position, begin, end, token, num_rows, slot, i_part, num_parts = found
        assert 0 <= state[0] < len(chunks) and 0 <= i_part < num_parts and begin % 128 == 0
        assert 0 <= begin < end <= context[state[0]]
        if num_parts > 1:
            assert slot + num_parts <= launch.num_slots
            slots.append(slot + i_part)
        start = first[state[0]]
        for query in range(min(num_rows, 128) // 4):
            seen = pairs.setdefault((start, token - start + query), [])
            seen.extend(range(begin, min(end, position + query + 1)))
    return pairs, slots


def choose(which: bool, a: int, b: int) -> int:
    return a if which else b


@pytest.fixture
def schedule(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module with its kernel functions as plain ones, on lists for memory."""
    from kernels.attention.hopper import prefill_schedule as module

    language = types.SimpleNamespace(maximum=max, minimum=min, where=choose, load=Pointer.load)
    for name in ("chunk_of", "count_parts", "count_units", "find_sequence", "find_rows"):
        monkeypatch.setattr(module, name, getattr(module, name).fn)
    monkeypatch.setattr(module, "gl", language)
    return module
