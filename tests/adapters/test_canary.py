"""A canary from begin to end: its states against real sockets, who gets it, what it keeps."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters import placement, settling, storage
from adapters.access import Resolved, access_adapter, resolve
from adapters.activation import begin_activation
from adapters.aliases import create_alias
from adapters.canary import set_canary, stop_canary
from adapters.models import AdapterVersion, Canary
from adapters.publish import delete_adapter, delete_version
from adapters.share import NUM_PLACES, pick, place
from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.models import AuditEvent
from tenants.scope import tenant_scope
from tests.adapters.conftest import make_ready
from tests.adapters.fake_replica import FakeReplica, running

URL = "/api/tenants/acme/adapters/a/canary/"
VERSIONS = "/api/tenants/acme/adapters/a/versions/"


@pytest.fixture
def replicas(house: Any) -> Iterator[list[FakeReplica]]:
    with ExitStack() as stack:
        found = [stack.enter_context(running(FakeReplica())) for _ in range(2)]
        house.REPLICA_URLS = [replica.url for replica in found]
        yield found


@pytest.fixture
def pair(scope: Principal, replicas: list[FakeReplica]) -> tuple[AdapterVersion, AdapterVersion]:
    """Version 1, active on both replicas, and version 2, ready."""
    first, second = make_ready(scope, "a", 1), make_ready(scope, "a", 2)
    begin_activation(scope, first)
    placement.reconcile()
    first.refresh_from_db()
    return first, second


def state_of(version: AdapterVersion) -> str:
    with tenant_scope(version.tenant_id):
        version.refresh_from_db()
    return version.state


def put(client: Client, **body: object) -> Any:
    return client.put(URL, body, content_type="application/json")


def share_of(found: Resolved, num_users: int = 2_000) -> float:
    digests = [pick(found, f"user {number}").digest for number in range(num_users)]
    return sum(digest != found.digest for digest in digests) / num_users


def test_the_same_weight_again_is_no_change(
    scope: Principal, pair: tuple[AdapterVersion, AdapterVersion]
) -> None:
    """A client that was not answered sends it again; the audit has what was done."""
    for percent in (20, 30, 30):
        set_canary(scope, pair[1], percent)
    assert AuditEvent.objects.filter(action="canary.changed").count() == 1


def test_it_works(
    scope: Principal,
    pair: tuple[AdapterVersion, AdapterVersion],
    replicas: list[FakeReplica],
) -> None:
    first, second = pair
    set_canary(scope, second, 20)
    # Nobody meets it before a replica has confirmed its digest.
    assert resolve(scope, "a").canary is None
    placement.reconcile()
    assert all(second.digest in replica.adapters for replica in replicas)
    found = resolve(scope, "a")
    assert (found.digest, found.canary_percent) == (first.digest, 20)
    assert found.canary and (found.canary.digest, found.canary.version) == (second.digest, 2)
    assert 0.16 < share_of(found) < 0.24
    # Who names a version gets that one, the canary's too.
    for number, version in ((1, first), (2, second)):
        pinned = resolve(scope, f"a@{number}")
        assert (pinned.digest, pinned.canary) == (version.digest, None)
    # An alias of the name shares its lottery, one of a version does not.
    create_alias(scope, "prod", first.adapter, None)
    create_alias(scope, "fixed", first.adapter, 1)
    assert resolve(scope, "prod").canary_percent == 20
    assert resolve(scope, "fixed").canary is None
    assert state_of(second) == "ready"
    actions = list(
        AuditEvent.objects.filter(action__startswith="canary.").values_list("action", flat=True)
    )
    assert actions == ["canary.running", "canary.started"]


@settings(max_examples=50)
@given(
    users=st.sets(st.text(max_size=40), min_size=1, max_size=50),
    weights=st.lists(st.integers(1, 99), min_size=2, max_size=6, unique=True),
    number=st.integers(1, 10**6),
)
def test_who_is_in_stays_in_while_the_weight_grows(
    users: set[str], weights: list[int], number: int
) -> None:
    canary = Resolved("c", "a", number, "a")
    before: set[str] = set()
    for percent in sorted(weights):
        found = Resolved("d", "a", number - 1, "a", None, canary, percent)
        inside = {user for user in users if pick(found, user) is canary}
        assert inside >= before
        assert inside == {user for user in users if pick(found, user) is canary}
        before = inside


@pytest.mark.parametrize("percent", [1, 10, 50, 99])
def test_the_share_is_the_weight(percent: int) -> None:
    """Within five standard deviations, and drawn anew for each version."""
    num_users = 20_000
    found = Resolved("d", "a", 1, "a", None, Resolved("c", "a", 2, "a"), percent)
    deviation = (percent / 100 * (1 - percent / 100) / num_users) ** 0.5
    assert abs(share_of(found, num_users) - percent / 100) < 5 * deviation
    both = [
        place("a@2", str(user)) < NUM_PLACES / 10 and place("a@3", str(user)) < NUM_PLACES / 10
        for user in range(num_users)
    ]
    assert 0.007 < sum(both) / num_users < 0.013


def test_promoting_it_is_activating_it(
    scope: Principal, pair: tuple[AdapterVersion, AdapterVersion], client: Client
) -> None:
    first, second = pair
    assert put(client, version=2, percent=10).json()["state"] == "loading"
    placement.reconcile()
    answer = put(client, percent=100)
    assert (answer.status_code, answer.json()["state"]) == (202, "running")
    # Until the pointer moves, its end users keep it.
    assert resolve(scope, "a").canary_percent == 10
    placement.reconcile()
    found = resolve(scope, "a")
    assert (found.digest, found.canary) == (second.digest, None)
    assert (state_of(first), client.get(URL).status_code) == ("ready", 404)
    assert AuditEvent.objects.filter(action="canary.promoted", target="a@2").exists()


def test_activating_another_version_stops_it(
    scope: Principal, pair: tuple[AdapterVersion, AdapterVersion]
) -> None:
    """A roll-back is for everyone."""
    third = make_ready(scope, "a", 3)
    set_canary(scope, pair[1], 50)
    placement.reconcile()
    begin_activation(scope, third)
    placement.reconcile()
    found = resolve(scope, "a")
    assert (found.digest, found.canary) == (third.digest, None)
    assert AuditEvent.objects.filter(action="canary.stopped", target="a@2").exists()


def test_stopped_it_leaves_the_replicas_but_not_the_store(
    scope: Principal,
    pair: tuple[AdapterVersion, AdapterVersion],
    replicas: list[FakeReplica],
    client: Client,
) -> None:
    _, second = pair
    put(client, version=2, percent=10)
    placement.reconcile()
    assert put(client, percent=0).status_code == 204
    assert resolve(scope, "a").canary is None
    with pytest.raises(ApiError, match="not served"):
        resolve(scope, "a@2")
    placement.reconcile()
    placement.Placement.objects.filter(state="orphaned").update(
        orphaned_at=timezone.now() - placement.ORPHAN_GRACE
    )
    placement.reconcile()
    assert second.digest not in replicas[0].adapters
    assert storage.blob_dir(second.digest).is_dir()


@pytest.mark.case("C76")
def test_one_that_no_replica_can_load_hurts_nobody(
    scope: Principal,
    pair: tuple[AdapterVersion, AdapterVersion],
    replicas: list[FakeReplica],
    client: Client,
) -> None:
    first, second = pair
    for replica in replicas:
        replica.failing[second.digest] = (400, "invalid_adapter", "rank 8 is above 4")
    put(client, version=2, percent=10)
    placement.reconcile()
    found = client.get(URL).json()
    assert found["state"] == "failed" and "rank 8 is above 4" in found["error"]
    assert (resolve(scope, "a").canary, state_of(first)) == (None, "active")
    # Begun again once the replicas can.
    for replica in replicas:
        replica.failing.clear()
    assert put(client, percent=15).json()["state"] == "loading"
    placement.reconcile()
    assert resolve(scope, "a").canary_percent == 15


def test_one_that_nobody_confirms_ends(
    scope: Principal, pair: tuple[AdapterVersion, AdapterVersion], house: Any
) -> None:
    set_canary(scope, pair[1], 10)
    house.REPLICA_URLS = []
    placement.reconcile()
    assert Canary.objects.get().state == "loading"
    Canary.objects.update(started_at=timezone.now() - settling.ACTIVATION_TIMEOUT)
    placement.reconcile()
    assert "no replica was healthy" in Canary.objects.get().error


def test_a_restarted_replica_gets_it_back_and_no_end_user_changes(
    scope: Principal, pair: tuple[AdapterVersion, AdapterVersion], replicas: list[FakeReplica]
) -> None:
    set_canary(scope, pair[1], 10)
    placement.reconcile()
    for replica in replicas:
        replica.adapters.clear()
        replica.failing[pair[1].digest] = (503, "overloaded", "not now")
    placement.reconcile()
    assert resolve(scope, "a").canary_percent == 10
    for replica in replicas:
        replica.failing.clear()
    placement.Placement.objects.update(next_attempt_at=timezone.now() - timedelta(seconds=1))
    placement.reconcile()
    assert all(pair[1].digest in replica.adapters for replica in replicas)


def test_its_bytes_stay_while_it_runs(
    scope: Principal, pair: tuple[AdapterVersion, AdapterVersion]
) -> None:
    set_canary(scope, pair[1], 10)
    with pytest.raises(ApiError, match="stop that first"):
        delete_version(scope, pair[1])
    delete_adapter(scope, access_adapter(scope, "a"))
    assert not Canary.objects.exists()


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"percent": 10}, 404, "not_found"),
        ({"percent": 0}, 404, "not_found"),
        ({"version": 2, "percent": 100}, 404, "not_found"),
        ({"version": 9, "percent": 10}, 404, "not_found"),
        ({"version": 1, "percent": 10}, 409, "not_ready"),
        ({"version": 2, "percent": 101}, 400, "invalid_request"),
        ({"version": 2}, 400, "invalid_request"),
    ],
)
def test_what_cannot_be_one(
    pair: tuple[AdapterVersion, AdapterVersion],
    client: Client,
    body: dict[str, int],
    status: int,
    code: str,
) -> None:
    answer = put(client, **body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert not Canary.objects.exists()


def test_it_stands_beside_an_active_version(scope: Principal) -> None:
    with pytest.raises(ApiError, match="no active version"):
        set_canary(scope, make_ready(scope, "a"), 10)


def test_another_takes_its_place(
    scope: Principal, pair: tuple[AdapterVersion, AdapterVersion]
) -> None:
    third = make_ready(scope, "a", 3)
    set_canary(scope, pair[1], 10)
    set_canary(scope, third, 30)
    found = Canary.objects.get()
    assert (found.version_id, found.percent, found.state) == (third.id, 30, "loading")
    stop_canary(scope, third.adapter)
    actions = list(AuditEvent.objects.filter(action__startswith="canary.").values_list("action"))
    assert [one for (one,) in actions] == [
        "canary.stopped", "canary.started", "canary.stopped", "canary.started",
    ]  # fmt: skip
