"""How many replicas hold a digest, and which take none: by load, by the operator's word."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.utils import timezone

from adapters import placement
from adapters.activation import begin_activation
from adapters.models import AdapterVersion, Placement
from adapters.rendezvous import ranked
from adapters.residency import read_residency
from tenants.auth import Principal
from tenants.scope import tenant_scope
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
