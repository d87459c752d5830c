from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
import torch

from inference.engine import Engine
from tests.tiny import make_adapter, make_base

# Tiny models gain nothing from threads, and on a busy machine threads wait for each other.
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("engine") / "base")


@pytest.fixture(scope="module")
def paths(base: Path) -> dict[str, Path]:
    return {
        name: make_adapter(base.parent / name, base, r=8 * (1 + seed % 2), seed=seed)
        for seed, name in enumerate("abcdef")
    }


@pytest.fixture(autouse=True, scope="session")
def _engines() -> Iterator["WeakSet[Engine]"]:
    """Every engine that is made in this process."""
    engines: WeakSet[Engine] = WeakSet()
    make = Engine.__init__

    def noted(self: Engine, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        engines.add(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "__init__", noted)
        yield engines


@pytest.fixture(autouse=True)
def _books_add_up(_engines: "WeakSet[Engine]") -> Iterator[None]:
    """After each test, whatever it did to its engines."""
    yield
    for engine in list(_engines):
        engine.check_integrity()
