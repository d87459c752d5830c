"""Pinned and warm: asked of replicas, healed like any placement, the operator's alone to give."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client

from adapters import placement
from adapters.activation import begin_activation
from adapters.models import Adapter, AdapterVersion, Placement
from tenants.auth import Principal
from tenants.models import AuditEvent, User
from tests.adapters.conftest import make_ready
from tests.adapters.fake_peers import FakeVllm
from tests.adapters.fake_replica import FakeReplica, running

URL = "/api/fleet/keep/acme/a/"


@pytest.fixture
def replica(house: Any) -> Iterator[FakeReplica]:
    with running(FakeReplica()) as found:
        house.REPLICA_URLS = [found.url]
        yield found


@pytest.fixture
def active(scope: Principal, replica: FakeReplica) -> AdapterVersion:
    version = make_ready(scope, "a")
    begin_activation(scope, version)
    placement.reconcile()
    version.refresh_from_db()
    return version


@pytest.fixture
def operator(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_user("olga", is_staff=True))
    return client


def put(client: Client, keep: str, url: str = URL) -> Any:
    return client.put(url, {"keep": keep}, content_type="application/json")


def test_it_works(active: AdapterVersion, replica: FakeReplica, operator: Client) -> None:
    """Pinned, pinned again after a restart and an eviction, and let go."""
    assert put(operator, "pinned").json()["keep"] == "pinned"
    placement.reconcile()
    assert replica.pinned == {active.digest}
    num_loads = len(replica.loads)
    placement.reconcile()
    assert len(replica.loads) == num_loads
    # It comes back from a restart without its pin, and gets it in the next round.
    replica.adapters.clear()
    replica.pinned.clear()
    for _ in range(2):
        placement.reconcile()
    assert replica.pinned == {active.digest}
    put(operator, "no")
    placement.reconcile()
    assert replica.pinned == set() and active.digest in replica.adapters
    event = AuditEvent.objects.filter(action="adapter.kept").latest("id")
    assert (event.actor, event.role, event.target) == ("olga", "operator", "a")
    assert (event.before, event.after) == ({"keep": "pinned"}, {"keep": "no"})


def test_it_follows_the_active_version(
    scope: Principal, active: AdapterVersion, replica: FakeReplica, operator: Client
) -> None:
    put(operator, "pinned")
    placement.reconcile()
    second = make_ready(scope, "a", 2)
    begin_activation(scope, second)
    for _ in range(2):
        placement.reconcile()
    # The former one stays for roll-backs, as near as there is room.
    assert replica.pinned == {second.digest} and active.digest in replica.adapters


def test_warm_is_fetched_from_disk(
    active: AdapterVersion, replica: FakeReplica, operator: Client
) -> None:
    replica.on_disk.add(active.digest)
    placement.reconcile()
    assert replica.on_disk == {active.digest}
    put(operator, "warm")
    placement.reconcile()
    assert (replica.on_disk, replica.pinned) == (set(), set())


def test_a_replica_without_room_says_so_and_serves(
    active: AdapterVersion, replica: FakeReplica, operator: Client
) -> None:
    replica.max_pinned = 0
    put(operator, "pinned")
    placement.reconcile()
    row = Placement.objects.get()
    assert row.state == "loaded" and "cannot pin" in row.error
    replica.max_pinned = 1
    placement.reconcile()
    assert (Placement.objects.get().error, replica.pinned) == ("", {active.digest})


def test_another_engine_is_not_asked_and_that_is_said(scope: Principal, house: Any) -> None:
    with running(FakeVllm()) as peer:
        house.REPLICA_URLS = [f"vllm+http://127.0.0.1:{peer.port}"]
        version = make_ready(scope, "a")
        begin_activation(scope, version)
        Adapter.objects.update(keep="pinned")
        for _ in range(2):
            placement.reconcile()
        version.refresh_from_db()
        error = Placement.objects.get().error
        assert (version.state, error) == ("active", "not kept near: vllm cannot 'keep near'")
        Adapter.objects.update(keep="no")
        placement.reconcile()
        assert Placement.objects.get().error == ""


def test_only_operators_decide(active: AdapterVersion, client: Client, operator: Client) -> None:
    assert put(client, "pinned").status_code == 403
    assert put(operator, "hot").status_code == 400
    for url in ("/api/fleet/keep/acme/b/", "/api/fleet/keep/nowhere/a/"):
        assert put(operator, "pinned", url).status_code == 404
    assert Adapter.objects.get().keep == "no"
