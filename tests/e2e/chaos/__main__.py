"""A long run by hand: `python -m tests.e2e.chaos --minutes 10 --seed 1`."""

import argparse
import json
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.chaos.files import make_pool
from tests.e2e.chaos.run import BASE_NAME, Chaos
from tests.e2e.house import run_house
from tests.tiny import make_base

NUM_ADAPTERS = 24


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="grafthouse-chaos-"))
    base = make_base(folder / BASE_NAME)
    (folder / "var").mkdir()
    with contextmanager(run_house)(folder / "var", MODEL=str(base)) as house:
        pool = make_pool(folder / "pool", base, NUM_ADAPTERS)
        chaos = Chaos(house, pool, given.seed)
        chaos.run(given.minutes * 60)
    print(json.dumps({"folder": str(folder), **chaos.figures}, indent=1))
    print(*chaos.faults, f"{len(chaos.faults)} faults", sep="\n")
    return min(1, len(chaos.faults))


if __name__ == "__main__":
    sys.exit(main())
