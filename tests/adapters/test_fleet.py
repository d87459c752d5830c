"""How many replicas hold a digest, and which take none: by load, by the operator's word."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from adapters import drain, placement, registry
from adapters.activation import begin_activation
from adapters.models import AdapterVersion, FleetEvent, Placement, Replica
from adapters.rendezvous import ranked
from adapters.residency import read_residency
from tenants.auth import Principal
from tenants.models import User
from tenants.scope import tenant_scope
from tests import factories
from tests.adapters.conftest import Publish
from tests.adapters.fake_replica import FakeReplica, running

DIGEST = "a" * 64


@pytest.fixture
def replicas(house: Any) -> Iterator[list[FakeReplica]]:
    house.NUM_REPLICAS_PER_ADAPTER = 1
    with ExitStack() as stack:
        found = [stack.enter_context(running(FakeReplica())) for _ in range(3)]
        house.REPLICA_URLS = [replica.url for replica in found]
        yield found


def activate(principal: Principal, version: AdapterVersion) -> None:
    with tenant_scope(principal.tenant_id):
        begin_activation(principal, version)
    placement.reconcile()


def holders(replicas: list[FakeReplica], digest: str) -> list[str]:
    return [one.url for one in replicas if digest in one.adapters]


def end_grace() -> None:
    past = timezone.now() - placement.ORPHAN_GRACE
    Placement.objects.filter(state="orphaned").update(orphaned_at=past)


def test_a_busy_digest_gets_more_replicas_and_gives_them_back(
    alice: Principal, published: Publish, replicas: list[FakeReplica]
) -> None:
    digest = published("hot").digest
    with tenant_scope(alice.tenant_id):
        version = AdapterVersion.objects.get()
    activate(alice, version)
    [home] = holders(replicas, digest)
    order = ranked(digest, [one.url for one in replicas])
    assert home == order[0]

    busy = next(one for one in replicas if one.url == home)
    busy.running = {digest: 6}
    placement.reconcile()
    assert set(holders(replicas, digest)) == set(order[:2])

    busy.running = {}
    placement.reconcile()
    # Not before the grace time: the next burst finds it there.
    assert len(holders(replicas, digest)) == 2
    busy.running = {digest: 6}
    placement.reconcile()
    end_grace()
    placement.reconcile()
    assert len(holders(replicas, digest)) == 2
    busy.running = {}
    placement.reconcile()
    end_grace()
    placement.reconcile()
    assert holders(replicas, digest) == [home]
    assert Placement.objects.count() == 1


def test_what_a_state_says_of_adapters() -> None:
    own = {"name": DIGEST, "digest": DIGEST, "tier": "device", "num_leases": 3}
    idle = {"name": "b" * 64, "digest": "b" * 64, "tier": "host", "num_leases": 0}
    others = [
        {"name": "c" * 64, "digest": "d" * 64, "tier": "device"},
        {"name": "an-operators-own", "digest": "e" * 64},
        "no adapter",
    ]
    state = {"num_running": 4, "num_waiting": 2, "adapters": [own, idle, *others]}
    found = read_residency(state)
    assert found.digests == {DIGEST, "b" * 64}
    assert (found.on_device, found.num_requests, found.load) == ({DIGEST}, {DIGEST: 3}, 6)


def test_an_engine_that_tells_less() -> None:
    found = read_residency({"adapters": [{"name": DIGEST, "digest": DIGEST}]})
    assert (found.digests, found.load, found.num_requests) == ({DIGEST}, 0, {})
    assert not found.on_device


def test_a_draining_replica_hands_over_what_it_holds(
    alice: Principal, published: Publish, replicas: list[FakeReplica]
) -> None:
    digest = published("a").digest
    with tenant_scope(alice.tenant_id):
        version = AdapterVersion.objects.get()
    activate(alice, version)
    [home] = holders(replicas, digest)
    replica = Replica.objects.get(url=home)
    heir = ranked(digest, [one.url for one in replicas])[1]

    drain.set_draining(replica.id, True, "oscar")
    assert drain.num_only_here(frozenset({digest, "unneeded"})) == 1
    placement.reconcile()
    assert drain.num_only_here(frozenset({digest})) == 0
    # It keeps its own until the other has it, and for the grace time.
    assert set(holders(replicas, digest)) == {home, heir}
    end_grace()
    placement.reconcile()
    assert holders(replicas, digest) == [heir]

    drain.set_draining(replica.id, False, "oscar")
    placement.reconcile()
    assert set(holders(replicas, digest)) == {home, heir}


@pytest.mark.django_db
def test_who_drained_and_resumed_stays_written(
    replicas: list[FakeReplica], client: Client, admin_client: Client
) -> None:
    registry.sync_replicas()
    replica = Replica.objects.all()[0]
    for is_draining, by in ((True, "oscar"), (True, "olga"), (False, "olga")):
        drain.set_draining(replica.id, is_draining, by)
    replica.delete()
    told = FleetEvent.objects.values_list("actor", "action", "target")
    # Repeating it did nothing.
    assert list(told) == [
        ("olga", "replica.resumed", replica.url),
        ("oscar", "replica.drained", replica.url),
    ]
    shown = admin_client.get("/api/fleet/events/").json()["results"]
    assert [tuple(one[name] for name in ("actor", "action", "target")) for one in shown] == [*told]
    # Neither a tenant's owner nor nobody sees it.
    assert client.get("/api/fleet/events/").status_code == 403
    assert Client().get("/api/fleet/events/").status_code == 401
    where = "/admin/adapters/fleetevent/"
    assert "oscar" in admin_client.get(where).content.decode()
    assert client.get(where).status_code == 302


def test_when_all_drain_nothing_is_lost(
    alice: Principal, published: Publish, replicas: list[FakeReplica]
) -> None:
    digest = published("a").digest
    with tenant_scope(alice.tenant_id):
        version = AdapterVersion.objects.get()
    activate(alice, version)
    before = holders(replicas, digest)
    for replica in Replica.objects.all():
        drain.set_draining(replica.id, True, "oscar")
    placement.reconcile()
    end_grace()
    placement.reconcile()
    assert holders(replicas, digest) == before


def test_draining_is_the_operators(alice: Principal, house: Any) -> None:
    house.REPLICA_URLS = ["http://r:1"]
    replica = Replica.objects.create(url="http://r:1", healthy=True)
    url = f"/api/fleet/{replica.id}"
    client, stranger = Client(), Client()
    client.force_login(factories.make_oscar())
    stranger.force_login(User.objects.get(id=alice.user_id))
    for _ in range(2):
        found = client.post(f"{url}/drain/").json()
        assert found["draining_since"] and found["drained_by"] == "oscar"
    assert registry.fleet() == {"http://r:1": ("grafthouse", True)}
    found = client.post(f"{url}/resume/").json()
    assert (found["draining_since"], found["drained_by"]) == (None, "")
    assert registry.fleet() == {"http://r:1": ("grafthouse", False)}
    assert client.post("/api/fleet/999999/drain/").status_code == 404
    for act in ("drain", "resume"):
        assert stranger.post(f"{url}/{act}/").status_code == 403
        assert Client().post(f"{url}/{act}/").status_code in (401, 403)
    assert registry.fleet() == {"http://r:1": ("grafthouse", False)}
