"""A tiny base model, a store of the test's own, and the people of the tests as API clients."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from adapters import storage
from adapters.models import Adapter, AdapterVersion
from adapters.publish import create_adapter, upload
from adapters.validate import validate_version
from inference.adapter_format import digest
from tenants.auth import Principal, principal_for_member
from tenants.scope import tenant_scope
from tests import factories
from tests.tiny import make_adapter, make_base


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("adapters") / "tiny-base")


@pytest.fixture(scope="session")
def adapter_files(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound adapter of rank 8 on q and v."""
    folder = tmp_path_factory.mktemp("adapter")
    return make_adapter(folder, base, targets=("q_proj", "v_proj"))


@pytest.fixture(autouse=True)
def house(settings: Any, base: Path, tmp_path: Path) -> Any:
    settings.BASE_MODEL_PATH = base
    settings.BASE_MODEL_NAME = "tiny-base"
    settings.ADAPTER_STORE_DIR = tmp_path / "store"
    settings.REPLICA_URLS = []
    settings.EVAL_SET_PATH = ""
    settings.NUM_REPLICAS_PER_ADAPTER = 2
    return settings


@pytest.fixture
def alice(db: None) -> Principal:
    """The owner of "acme"; the tenant's scope is the test's to open."""
    user = factories.make_alice()
    return principal_for_member(user.id, "acme")


@pytest.fixture
def scope(alice: Principal) -> Iterator[Principal]:
    with tenant_scope(alice.tenant_id):
        yield alice


@pytest.fixture
def carol(db: None) -> Principal:
    user = factories.make_carol()
    return principal_for_member(user.id, "initech")


def client_of(principal: Principal) -> Client:
    from tenants.models import User

    client = Client()
    client.force_login(User.objects.get(id=principal.user_id))
    return client


@pytest.fixture
def client(alice: Principal) -> Client:
    return client_of(alice)


def put_in_quarantine(files: dict[str, bytes]) -> str:
    token = storage.new_quarantine()
    for name, content in files.items():
        (storage.quarantine_dir(token) / name).write_bytes(content)
    return token


def both_files(folder: Path) -> dict[str, bytes]:
    names = (storage.CONFIG_FILE, storage.WEIGHTS_FILE)
    return {name: (folder / name).read_bytes() for name in names}


Publish = Callable[..., AdapterVersion]


def make_ready(principal: Principal, name: str, seed: int = 1) -> AdapterVersion:
    """A ready version, its bytes in the store, without the checks. Call inside the scope."""
    files = {storage.CONFIG_FILE: b'{"r": 8, "seed": %d}' % seed, storage.WEIGHTS_FILE: b"weights"}
    token = put_in_quarantine(files)
    weights = storage.quarantine_dir(token) / storage.WEIGHTS_FILE
    found = digest(files[storage.CONFIG_FILE], weights)
    adapter = Adapter.objects.filter(name=name).first() or create_adapter(principal, name)
    adapter.last_number += 1
    adapter.save()
    version = AdapterVersion.objects.create(
        tenant_id=adapter.tenant_id,
        adapter=adapter,
        number=adapter.last_number,
        state="ready",
        digest=found,
        created_by="test",
    )
    storage.publish_blob(token, found)
    storage.discard_quarantine(token)
    return version


@pytest.fixture
def published(alice: Principal, adapter_files: Path, base: Path, tmp_path: Path) -> Publish:
    """published(name, seed=1, principal=alice): a ready version, through the real checks."""

    def publish(name: str, seed: int = 1, principal: Principal = alice) -> AdapterVersion:
        folder = make_adapter(tmp_path / f"files-{seed}", base, targets=("q_proj",), seed=seed)
        with tenant_scope(principal.tenant_id):
            version = upload(principal, name, put_in_quarantine(both_files(folder)))
            validate_version(principal.tenant_id, version.id)
            version.refresh_from_db()
            assert version.state == "ready", version.report
            return version

    return publish
