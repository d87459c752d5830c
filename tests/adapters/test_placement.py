"""Desired against reported, over real sockets: load, confirm, restart, orphan, fail, recover."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from adapters import fleet, placement, registry, settling, storage
from adapters.access import resolve
from adapters.activation import begin_activation
from adapters.dialects.dialect import ReplicaError
from adapters.models import Adapter, AdapterVersion, Placement, Replica
from adapters.publish import delete_adapter, retry
from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.models import AuditEvent
from tenants.scope import tenant_scope
from tests.adapters.conftest import Publish
from tests.adapters.fake_replica import FakeReplica, running


@pytest.fixture
def replicas(house: Any) -> Iterator[list[FakeReplica]]:
    with ExitStack() as stack:
        found = [stack.enter_context(running(FakeReplica())) for _ in range(2)]
        house.REPLICA_URLS = [replica.url for replica in found]
        yield found


def activate(principal: Principal, version: AdapterVersion) -> None:
    with tenant_scope(principal.tenant_id):
        begin_activation(principal, version)


def state_of(version: AdapterVersion) -> str:
    with tenant_scope(version.tenant_id):
        version.refresh_from_db()
    return version.state


def make_due() -> None:
    """As if the back-off had passed."""
    Placement.objects.update(next_attempt_at=timezone.now() - timedelta(seconds=1))


def test_it_works(alice: Principal, published: Publish, replicas: list[FakeReplica]) -> None:
    version = published("support-bot")
    assert all(not replica.loads for replica in replicas)
    with pytest.raises(ApiError) as caught:
        resolve(alice, "support-bot")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")

    activate(alice, version)
    assert state_of(version) == "activating"
    placement.reconcile()
    assert state_of(version) == "active"
    assert all(replica.adapters == {version.digest: version.digest} for replica in replicas)
    found = resolve(alice, "support-bot")
    assert (found.digest, found.adapter, found.version) == (version.digest, "support-bot", 1)
    with tenant_scope(alice.tenant_id):
        assert Adapter.objects.get().active_version == version
        actions = list(AuditEvent.objects.values_list("action", flat=True))
    assert actions[:2] == ["version.active", "version.activating"]


def test_a_second_round_changes_nothing(
    alice: Principal, published: Publish, replicas: list[FakeReplica]
) -> None:
    activate(alice, published("a"))
    placement.reconcile()
    before = list(Placement.objects.values())
    placement.reconcile()
    assert list(Placement.objects.values()) == before
    assert [len(replica.loads) for replica in replicas] == [1, 1]


def test_the_former_version_serves_until_the_new_one_is_confirmed(
    alice: Principal, published: Publish, replicas: list[FakeReplica]
) -> None:
    first, second = published("a", seed=1), published("a", seed=2)
    activate(alice, first)
    placement.reconcile()
    replicas[0].failing[second.digest] = (503, "overloaded", "out of memory")
    activate(alice, second)
    placement.reconcile()
    assert state_of(second) == "activating"
    assert resolve(alice, "a").digest == first.digest

    del replicas[0].failing[second.digest]
    make_due()
    placement.reconcile()
    assert (state_of(first), state_of(second)) == ("ready", "active")
    assert resolve(alice, "a").digest == second.digest
    assert resolve(alice, "a@1").digest == first.digest


def test_rolling_back_is_activating_the_older_one(
    alice: Principal, published: Publish, replicas: list[FakeReplica]
) -> None:
    first, second = published("a", seed=1), published("a", seed=2)
    for version in (first, second, first):
        state_of(version)
        activate(alice, version)
        placement.reconcile()
    assert (state_of(first), state_of(second)) == ("active", "ready")
    # It never left the replicas: nothing was loaded twice.
    assert [len(replica.loads) for replica in replicas] == [2, 2]


@pytest.mark.case("C77")
def test_a_restarted_replica_gets_its_adapters_back(
    alice: Principal, published: Publish, replicas: list[FakeReplica]
) -> None:
    version = published("a")
    activate(alice, version)
    placement.reconcile()
    replicas[1].adapters.clear()
    placement.reconcile()
    assert version.digest in replicas[1].adapters
    assert state_of(version) == "active"


@pytest.mark.case("C77")
def test_a_dead_replica_is_replaced_and_a_new_one_filled(
    alice: Principal, published: Publish, house: Any
) -> None:
    version = published("a")
    house.NUM_REPLICAS_PER_ADAPTER = 1
    with running(FakeReplica()) as one, running(FakeReplica()) as two:
        house.REPLICA_URLS = [one.url, two.url]
        activate(alice, version)
        placement.reconcile()
        holder, other = (one, two) if one.adapters else (two, one)
        assert not other.adapters
    with running(FakeReplica(port=other.port)) as other:
        # Seen alive a moment ago, so one lost poll moves nothing; then it counts as down.
        placement.reconcile()
        assert not other.adapters
        Replica.objects.update(last_seen=timezone.now() - fleet.UNHEALTHY_AFTER)
        placement.reconcile()
        assert version.digest in other.adapters
        down = Replica.objects.get(url=holder.url)
        assert not down.healthy and "Connection" in down.error


@pytest.mark.case("C77")
def test_an_orphan_is_unloaded_after_a_grace_time_and_its_bytes_go(
    alice: Principal, published: Publish, replicas: list[FakeReplica]
) -> None:
    version = published("a")
    activate(alice, version)
    placement.reconcile()
    with tenant_scope(alice.tenant_id):
        delete_adapter(alice, Adapter.objects.get())
    placement.reconcile()
    assert version.digest in replicas[0].adapters
    assert storage.blob_dir(version.digest).is_dir()
    past = timezone.now() - placement.ORPHAN_GRACE
    Placement.objects.update(orphaned_at=past)
    placement.reconcile()
    assert not replicas[0].adapters and not replicas[1].adapters
    assert not storage.blob_dir(version.digest).exists()
    assert not Placement.objects.exists()


def test_what_the_control_plane_never_placed_is_left_or_cleaned_by_its_name(
    db: None, replicas: list[FakeReplica]
) -> None:
    replicas[0].adapters = {"an-operators-own": "0" * 64, "f" * 64: "f" * 64}
    placement.reconcile()
    Placement.objects.update(orphaned_at=timezone.now() - placement.ORPHAN_GRACE)
    placement.reconcile()
    assert list(replicas[0].adapters) == ["an-operators-own"]


@pytest.mark.case("C76")
def test_one_bad_adapter_blocks_no_other_and_ends_as_failed(
    alice: Principal, published: Publish, replicas: list[FakeReplica]
) -> None:
    bad, good = published("bad", seed=1), published("good", seed=2)
    for replica in replicas:
        replica.failing[bad.digest] = (500, "internal_error", "CUDA out of memory")
    activate(alice, bad)
    activate(alice, good)
    placement.reconcile()
    assert (state_of(bad), state_of(good)) == ("activating", "active")
    placement.reconcile()
    # Not before the back-off has passed.
    assert replicas[0].loads.count(bad.digest) == 1
    for _ in range(placement.MAX_ATTEMPTS + 2):
        make_due()
        placement.reconcile()
    assert state_of(bad) == "failed"
    assert "CUDA out of memory" in bad.error
    assert replicas[0].loads.count(bad.digest) == placement.MAX_ATTEMPTS

    for replica in replicas:
        replica.failing.clear()
    with tenant_scope(alice.tenant_id):
        retry(alice, bad)
    placement.reconcile()
    assert state_of(bad) == "active" and bad.error == ""


@pytest.mark.case("C76")
def test_a_refusal_by_the_replica_is_not_repeated(
    alice: Principal, published: Publish, replicas: list[FakeReplica]
) -> None:
    version = published("a")
    for replica in replicas:
        replica.failing[version.digest] = (400, "invalid_adapter", "rank 8 is above 4")
    activate(alice, version)
    placement.reconcile()
    assert state_of(version) == "failed" and "rank 8 is above 4" in version.error
    assert replicas[0].loads == [version.digest]


@pytest.mark.case("C77")
def test_one_replica_that_cannot_does_not_stop_the_other(
    alice: Principal, published: Publish, replicas: list[FakeReplica]
) -> None:
    version = published("a")
    replicas[0].failing[version.digest] = (400, "invalid_adapter", "no room")
    activate(alice, version)
    placement.reconcile()
    assert state_of(version) == "active"
    assert Placement.objects.get(state="failed").error == "no room"


def test_without_a_replica_an_activation_ends_too(alice: Principal, published: Publish) -> None:
    version = published("a")
    activate(alice, version)
    placement.reconcile()
    assert state_of(version) == "activating"
    with tenant_scope(alice.tenant_id):
        AdapterVersion.objects.update(heartbeat_at=timezone.now() - settling.ACTIVATION_TIMEOUT)
    placement.reconcile()
    assert state_of(version) == "failed" and "no replica was healthy" in version.error


@pytest.mark.case("C75")
def test_a_claimed_load_is_not_started_twice_and_a_dead_claim_ends(
    alice: Principal, published: Publish, replicas: list[FakeReplica]
) -> None:
    version = published("a")
    activate(alice, version)
    later = timezone.now() + placement.CLAIM
    registry.sync_replicas()
    for replica in Replica.objects.all():
        Placement.objects.create(
            digest=version.digest, replica=replica, state="loading", next_attempt_at=later
        )
    placement.reconcile()
    assert not replicas[0].loads and state_of(version) == "activating"
    make_due()
    placement.reconcile()
    placement.reconcile()
    assert state_of(version) == "active"


def test_a_load_that_takes_its_time_keeps_its_claim(
    alice: Principal,
    published: Publish,
    replicas: list[FakeReplica],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A claim is short, so that a dead worker's ends soon; who works on says so."""
    version, kept = published("a"), []
    record = placement._record_load

    def look_first(row: Placement, result: ReplicaError | None) -> None:
        found = Placement.objects.get(id=row.id)
        kept.append(found.next_attempt_at - found.updated_at - placement.CLAIM)
        record(row, result)

    monkeypatch.setattr(placement, "BEAT_S", 0.1)
    monkeypatch.setattr(placement, "_record_load", look_first)
    for replica in replicas:
        replica.load_delay_s = 0.5
    activate(alice, version)
    placement.reconcile()
    assert state_of(version) == "active" and min(kept) >= timedelta(seconds=0.1)


@pytest.mark.case("C75")
@pytest.mark.django_db(transaction=True)
def test_rounds_side_by_side_load_once(
    alice: Principal, published: Publish, replicas: list[FakeReplica]
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from django.db import connection

    if connection.vendor == "sqlite":
        pytest.skip("the test database is in memory: threads lock its tables without waiting")
    version = published("a")
    activate(alice, version)
    registry.sync_replicas()
    for replica in replicas:
        replica.load_delay_s = 0.3

    def one_round(_: int) -> None:
        try:
            placement.reconcile()
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one_round, range(4)))
    placement.reconcile()
    assert state_of(version) == "active"
    assert [len(replica.loads) for replica in replicas] == [1, 1]


def test_equal_bytes_of_two_tenants_share_a_blob_but_no_rights(
    alice: Principal, carol: Principal, published: Publish, replicas: list[FakeReplica]
) -> None:
    first, second = published("mine"), published("other", principal=carol)
    assert first.digest == second.digest
    activate(alice, first)
    activate(carol, second)
    placement.reconcile()
    assert len(replicas[0].adapters) == 1
    with tenant_scope(alice.tenant_id):
        delete_adapter(alice, Adapter.objects.get())
    placement.reconcile()
    assert resolve(carol, "other").digest == second.digest
    assert storage.blob_dir(second.digest).is_dir()
    for name in ("mine", "mine@1"):
        with pytest.raises(ApiError):
            resolve(carol, name)


def test_a_suspended_tenants_adapters_leave_the_replicas(
    alice: Principal, published: Publish, replicas: list[FakeReplica]
) -> None:
    from tenants.models import Tenant

    activate(alice, published("a"))
    placement.reconcile()
    Tenant.objects.update(is_active=False)
    placement.reconcile()
    assert set(Placement.objects.values_list("state", flat=True)) == {"orphaned"}


def test_few_placements_move_when_a_replica_joins(house: Any) -> None:
    house.NUM_REPLICAS_PER_ADAPTER = 1
    three = [Replica(url=f"http://r{number}", healthy=True) for number in range(3)]
    four = [*three, Replica(url="http://r3", healthy=True)]
    digests = [f"{number:064x}" for number in range(400)]
    moved = sum(
        fleet.choose(digest, three)[0].url != fleet.choose(digest, four)[0].url
        for digest in digests
    )
    assert 60 <= moved <= 140
