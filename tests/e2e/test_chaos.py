"""kill -9 of web, worker and replica at seeded moments, while clients change everything.

A house of its own, on a tiny base: its processes are back in seconds. `python -m tests.e2e.chaos
--minutes 10` is the same for longer.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.chaos.files import make_pool
from tests.e2e.chaos.run import BASE_NAME, Chaos
from tests.e2e.house import House, run_house
from tests.tiny import make_base

pytestmark = [pytest.mark.slow]
FIRE_S = 15.0


@pytest.fixture
def tiny_base(tmp_path: Path) -> Path:
    return make_base(tmp_path / BASE_NAME)


@pytest.fixture
def tiny_house(tiny_base: Path, tmp_path: Path) -> Iterator[House]:
    (tmp_path / "var").mkdir()
    yield from run_house(tmp_path / "var", MODEL=str(tiny_base))


def test_nothing_is_stuck_or_half_done(tiny_house: House, tiny_base: Path, tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", tiny_base, 12)
    chaos = Chaos(tiny_house, pool, seed=28)
    chaos.run(FIRE_S)
    print(chaos.figures)
    assert chaos.faults == []
    assert chaos.killer.kills and chaos.figures["activations"]
