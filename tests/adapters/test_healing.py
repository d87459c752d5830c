"""What replicas lost comes back by beat's rounds alone, within ten seconds by beat's clock."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from adapters import placement
from adapters.activation import begin_activation
from adapters.models import AdapterVersion
from tenants.auth import Principal
from tenants.scope import tenant_scope
from tenants.store import store
from tests.adapters.conftest import Publish
from tests.adapters.fake_peers import FakePeer, FakeSglang, FakeVllm
from tests.adapters.fake_replica import FakeReplica, running

KINDS = {"grafthouse": FakeReplica, "vllm": FakeVllm, "sglang": FakeSglang}
PERIOD_S = settings.CELERY_BEAT_SCHEDULE["reconcile-placement"]["schedule"]
HEALED_WITHIN_S = 10.0
AnyReplica = FakeReplica | FakePeer


@dataclass
class Beat:
    """Beat's rounds and nothing else, on a clock that does not wait."""

    now: datetime

    def heals(self, is_healed: Callable[[], bool]) -> bool:
        deadline = self.now + timedelta(seconds=HEALED_WITHIN_S - PERIOD_S)
        while not is_healed() and self.now <= deadline:
            self.round()
        return is_healed()

    def round(self) -> None:
        self.now += timedelta(seconds=PERIOD_S)
        placement.reconcile()


@pytest.fixture
def beat(monkeypatch: pytest.MonkeyPatch) -> Beat:
    beat = Beat(timezone.now())
    monkeypatch.setattr(timezone, "now", lambda: beat.now)
    return beat


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(kind: str, house: Any) -> Iterator[list[AnyReplica]]:
    """Two replicas of one engine; both are to hold every active version."""
    with ExitStack() as stack:
        found = [stack.enter_context(running(KINDS[kind]())) for _ in range(2)]
        house.REPLICA_URLS = [f"{kind}+{replica.url}" for replica in found]
        yield found


def activate(principal: Principal, version: AdapterVersion, beat: Beat) -> None:
    with tenant_scope(principal.tenant_id):
        begin_activation(principal, version)
    assert beat.heals(lambda: state_of(version) == "active")


def state_of(version: AdapterVersion) -> str:
    with tenant_scope(version.tenant_id):
        version.refresh_from_db()
    return version.state


@pytest.mark.case("C77")
def test_an_evicted_adapter_comes_back_and_its_neighbour_is_left_alone(
    alice: Principal, published: Publish, pair: list[AnyReplica], beat: Beat
) -> None:
    lost, kept = published("lost", seed=1), published("kept", seed=2)
    for version in (lost, kept):
        activate(alice, version, beat)
    num_loads = [len(replica.loads) for replica in pair]
    del pair[0].adapters[lost.digest]
    assert beat.heals(lambda: lost.digest in pair[0].adapters)
    assert [len(replica.loads) for replica in pair] == [num_loads[0] + 1, num_loads[1]]
    assert state_of(lost) == state_of(kept) == "active"


@pytest.mark.case("C77")
def test_a_push_whose_message_the_broker_lost_is_made_up_for(
    alice: Principal,
    published: Publish,
    pair: list[AnyReplica],
    beat: Beat,
    django_capture_on_commit_callbacks: Any,
) -> None:
    version = published("a")
    store().delete("healing")
    with tenant_scope(alice.tenant_id), django_capture_on_commit_callbacks(execute=True):
        begin_activation(alice, version)
    # It lay in the queue, and is gone before any worker saw it.
    assert store().llen("healing") == 1 and store().delete("healing") == 1
    assert beat.heals(lambda: state_of(version) == "active")
    assert all(version.digest in replica.adapters for replica in pair)


@pytest.mark.case("C77")
def test_a_replica_that_restarts_empty_is_filled(
    alice: Principal, published: Publish, kind: str, house: Any, beat: Beat
) -> None:
    version = published("a")
    with running(KINDS[kind]()) as replica:
        house.REPLICA_URLS = [f"{kind}+{replica.url}"]
        activate(alice, version, beat)
    for _ in range(3):
        # Down for longer than a lost poll is forgiven.
        beat.round()
    assert state_of(version) == "active"
    with running(KINDS[kind](port=replica.port)) as again:
        assert beat.heals(lambda: version.digest in again.adapters)


@pytest.mark.case("C77")
def test_a_new_replica_is_filled_and_the_old_ones_are_left_alone(
    alice: Principal, published: Publish, kind: str, pair: list[AnyReplica], house: Any, beat: Beat
) -> None:
    house.NUM_REPLICAS_PER_ADAPTER = 3
    version = published("a")
    activate(alice, version, beat)
    with running(KINDS[kind]()) as fresh:
        house.REPLICA_URLS = [*house.REPLICA_URLS, f"{kind}+{fresh.url}"]
        assert beat.heals(lambda: version.digest in fresh.adapters)
    assert [len(replica.loads) for replica in pair] == [1, 1]
