"""Prompt lengths, ranks and batch sizes across tile borders, on the CPU.

All combinations, on a GPU, are in test_sizes_gpu.py.
"""

from itertools import cycle

import pytest

from tests.inference.sizes import LENGTHS, RANKS, Row, Sizes

TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> Sizes:
    return Sizes(tmp_path_factory.mktemp("sizes"), RANKS, "cpu")


def rows_of(num_rows: int, lengths: tuple[int, ...] = LENGTHS) -> list[Row]:
    """Every length, every rank, and the base, in turn."""
    turns = zip(cycle(lengths), cycle((*RANKS, None)), strict=False)
    return [row for row, _ in zip(turns, range(num_rows), strict=False)]


def test_the_probes_are_strong(sizes: Sizes) -> None:
    assert min(sizes.effect((16, rank)) for rank in RANKS) > 100 * TOLERANCE


@pytest.mark.case("C74")
@pytest.mark.parametrize("batch_size", [1, 3])
def test_every_length(sizes: Sizes, batch_size: int) -> None:
    """A peer's kernel gave NaN from a token position on, behind one tile: short probes passed. Here
    every length and rank on both sides of a border is what merged weights give.
    """
    assert sizes.sweep(sizes.client(), rows_of(len(LENGTHS)), batch_size) < TOLERANCE


@pytest.mark.case("C74")
def test_64_at_once(sizes: Sizes) -> None:
    client = sizes.client(max_loras_per_batch=len(RANKS))
    assert sizes.sweep(client, rows_of(64, LENGTHS[:7]), 64) < TOLERANCE
