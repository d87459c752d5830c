from pathlib import Path

import pytest
import torch

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
