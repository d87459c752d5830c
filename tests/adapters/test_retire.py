"""Retired: no longer served, still in the books and in the store, and able to come back."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client

from adapters import placement, storage
from adapters.access import resolve, servable_models
from adapters.activation import begin_activation
from adapters.aliases import create_alias
from adapters.canary import set_canary
from adapters.models import Adapter, AdapterVersion, Canary
from adapters.publish import delete_version
from adapters.retire import retire_version
from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.models import AuditEvent
from tests.adapters.conftest import make_ready
from tests.adapters.fake_replica import FakeReplica, running

ROOT = "/api/tenants/acme/adapters/a/"


@pytest.fixture
def replica(house: Any) -> Iterator[FakeReplica]:
    with running(FakeReplica()) as found:
        house.REPLICA_URLS = [found.url]
        yield found


@pytest.fixture
def versions(scope: Principal, replica: FakeReplica) -> list[AdapterVersion]:
    """1 superseded, 2 active, 3 ready."""
    made = [make_ready(scope, "a", seed) for seed in (1, 2, 3)]
    for version in made[:2]:
        begin_activation(scope, version)
        placement.reconcile()
        version.refresh_from_db()
    return made


def refusal(caller: Principal, model: str) -> str:
    with pytest.raises(ApiError) as caught:
        resolve(caller, model)
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    return caught.value.message


def unload_orphans() -> None:
    placement.reconcile()
    past = placement.timezone.now() - placement.ORPHAN_GRACE
    placement.Placement.objects.filter(state="orphaned").update(orphaned_at=past)
    placement.reconcile()


def test_it_works(
    scope: Principal, versions: list[AdapterVersion], replica: FakeReplica, client: Client
) -> None:
    """A former version: its number is refused with the reason, it leaves the replicas, and it can
    be activated again.
    """
    first, second, _ = versions
    answer = client.post(f"{ROOT}versions/1/retire/")
    assert (answer.status_code, answer.json()["state"]) == (200, "retired")
    assert answer.json()["is_served"] is False
    assert "was retired and is not served" in refusal(scope, "a@1")
    unload_orphans()
    assert set(replica.adapters) == {second.digest}
    assert storage.sweep_blobs(-60) == 0 and storage.blob_dir(first.digest).is_dir()
    first.refresh_from_db()
    begin_activation(scope, first)
    assert "activating" in refusal(scope, "a@1")
    placement.reconcile()
    assert resolve(scope, "a").digest == first.digest


def test_an_adapter_is_retired_with_all_its_versions(
    scope: Principal, versions: list[AdapterVersion], replica: FakeReplica, client: Client
) -> None:
    set_canary(scope, versions[2], 10)
    create_alias(scope, "prod", versions[0].adapter, None)
    create_alias(scope, "fixed", versions[0].adapter, 2)
    body = client.post(f"{ROOT}retire/").json()
    assert body["active_version"] is None and body["retired_at"] is not None
    for name in ("a", "prod"):
        assert f"`{name}` was retired on" in refusal(scope, name)
    for name in ("a@1", "a@2", "a@3", "fixed"):
        assert "was retired and is not served" in refusal(scope, name)
    assert [one.id for one in servable_models(scope)] == ["tiny-base"]
    assert not Canary.objects.exists()
    actions = list(AuditEvent.objects.values_list("action", flat=True)[:5])
    assert actions == ["adapter.retired", *["version.retired"] * 3, "canary.stopped"]
    assert client.post(f"{ROOT}retire/").json() == body
    unload_orphans()
    assert not replica.adapters
    # Back again, under its old names.
    assert client.post(f"{ROOT}versions/2/activate/").status_code == 202
    placement.reconcile()
    assert resolve(scope, "fixed").digest == versions[1].digest
    assert (Adapter.objects.get().retired_at, resolve(scope, "prod").version) == (None, 2)


def test_what_is_in_use_is_not_retired(
    scope: Principal, versions: list[AdapterVersion], client: Client
) -> None:
    create_alias(scope, "fixed", versions[0].adapter, 1)
    set_canary(scope, versions[2], 10)
    for number in (1, 2, 3):
        answer = client.post(f"{ROOT}versions/{number}/retire/")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "version_in_use")
    assert not AdapterVersion.objects.filter(state="retired").exists()


def test_what_was_never_published_is_not_retired(scope: Principal, client: Client) -> None:
    make_ready(scope, "a")
    AdapterVersion.objects.update(state="rejected")
    answer = client.post(f"{ROOT}versions/1/retire/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_retirable")


def test_retired_it_is_no_canary_and_no_alias_and_may_be_deleted(
    scope: Principal,
    versions: list[AdapterVersion],
    django_capture_on_commit_callbacks: Any,
) -> None:
    third = retire_version(scope, versions[2])
    with pytest.raises(ApiError, match="only a ready version can be a canary"):
        set_canary(scope, third, 10)
    with pytest.raises(ApiError, match="needs one that is ready"):
        create_alias(scope, "fixed", third.adapter, 3)
    with django_capture_on_commit_callbacks(execute=True):
        delete_version(scope, third)
    assert not storage.blob_dir(third.digest).exists()
