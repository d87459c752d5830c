from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.base_model import ensure
from tests.e2e.house import MODEL_DIR, ROOT_DIR, House, Member, run_house
from tests.e2e.oracle import ChatOracle


@pytest.fixture(scope="session")
def model_dir() -> Path:
    return ensure(MODEL_DIR)


@pytest.fixture(scope="session")
def oracle(model_dir: Path) -> ChatOracle:
    configs = sorted((ROOT_DIR / "demo" / "adapters").glob("*/adapter_config.json"))
    return ChatOracle(model_dir, {path.parent.name: path.parent for path in configs})


@pytest.fixture(scope="session")
def house(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    yield from run_house(tmp_path_factory.mktemp("house"))


@pytest.fixture(scope="session")
def acme(house: House) -> Iterator[Member]:
    member = house.sign_in(0)
    yield member
    member.session.close()


@pytest.fixture(scope="session")
def globex(house: House) -> Iterator[Member]:
    member = house.sign_in(1)
    yield member
    member.session.close()
