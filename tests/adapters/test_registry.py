"""Replicas that announce themselves: who may, what becomes of them, and when they are forgotten."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from adapters import placement, registry
from adapters.activation import begin_activation
from adapters.models import AdapterVersion, FleetEvent, Placement, Replica
from tenants.auth import Principal
from tenants.scope import tenant_scope
from tests.adapters.conftest import Publish
from tests.adapters.fake_replica import FakeReplica, running

pytestmark = pytest.mark.django_db
TOKEN = "a token of 24 characters"
URL = "/api/fleet/announce/"


@pytest.fixture(autouse=True)
def _open(house: Any) -> None:
    house.REPLICA_URLS, house.REPLICA_TOKEN = [], TOKEN


def announce(url: object, token: str = TOKEN, **more: object) -> Any:
    headers = {"authorization": f"Bearer {token}"}
    body = {"url": url} | more
    return Client(headers=headers).post(URL, body, content_type="application/json")


def test_it_works(alice: Principal, published: Publish) -> None:
    """Nothing was configured: the first to announce itself gets what is active, and serves."""
    digest = published("bot").digest
    with tenant_scope(alice.tenant_id), running(FakeReplica()) as replica:
        begin_activation(alice, AdapterVersion.objects.get())
        answer = announce(replica.url + "/")
        assert (answer.status_code, answer.json()) == (
            200,
            {"url": replica.url, "forget_after_s": 60},
        )
        placement.reconcile()
        assert digest in replica.adapters
        assert AdapterVersion.objects.get().state == "active"
    assert registry.fleet() == {replica.url: ("grafthouse", False)}


def test_it_is_said_as_often_as_one_likes() -> None:
    for _ in range(3):
        assert announce("http://r:1").status_code == 200
    assert Replica.objects.count() == 1
    events = FleetEvent.objects.values_list("actor", "action", "target")
    assert list(events) == [("the replica itself", "replica.announced", "http://r:1")]


def test_other_engines_announce_themselves_too() -> None:
    assert announce("http://r:1", engine="vllm").status_code == 200
    # The same address with another engine is another replica.
    row = Replica.objects.get()
    Placement.objects.create(replica=row, digest="a" * 64, next_attempt_at=timezone.now())
    assert announce("http://r:1", engine="sglang").status_code == 200
    assert registry.fleet() == {"http://r:1": ("sglang", False)}
    assert not Placement.objects.exists()


@pytest.mark.parametrize(
    "url",
    [
        *("", "r:1", "ftp://r:1", "http://", "http://r:1/v1", "http://r:1?a=b", "http://r:1#a"),
        *("http://a b:1", 'http://a"b:1', "http://a\x7f:1", "http://a\0:1", "http://ü:1"),
        *("http://user:pass@r:1", "http://r:port", "http://r:99999", "http://[r", "http://r\n:1"),
        *("http://" + "r" * 300, 7, None, ["http://r:1"]),
    ],
)
def test_what_is_no_address_is_a_400(url: object) -> None:
    answer = announce(url)
    assert answer.status_code == 400
    assert "url" in str(answer.json()["error"])
    assert not Replica.objects.exists()


def test_an_engine_nobody_knows_is_a_400() -> None:
    answer = announce("http://r:1", engine="llama.cpp")
    assert answer.status_code == 400
    assert "grafthouse, vllm, sglang" in answer.json()["error"]["message"]


def test_addresses_of_every_kind_are_one_each() -> None:
    for url in ("http://R:1/", "http://r:1", "https://r", "http://[::1]:8100"):
        assert announce(url).status_code == 200
    assert set(registry.fleet()) == {"http://r:1", "https://r", "http://[::1]:8100"}


def test_only_with_the_token(house: Any) -> None:
    for token in ("", "wrong", TOKEN + "x", "ü"):
        answer = announce("http://r:1", token)
        assert (answer.status_code, answer.json()["error"]["code"]) == (
            401,
            "invalid_replica_token",
        )
    assert Client().post(URL, {"url": "http://r:1"}).status_code == 401
    house.REPLICA_TOKEN = ""
    answer = announce("http://r:1", "")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "announcements_off")
    assert not Replica.objects.exists()


def test_what_is_configured_stands(house: Any) -> None:
    house.REPLICA_URLS = ["vllm+http://r:1"]
    assert announce("http://r:1").status_code == 409
    assert announce("http://r:1", engine="vllm").status_code == 200
    long_ago = timezone.now() - timedelta(hours=1)
    Replica.objects.update(announced_at=long_ago, last_seen=long_ago)
    assert [one.url for one in registry.sync_replicas()] == ["http://r:1"]


def test_who_is_silent_is_forgotten() -> None:
    now = timezone.now()
    fresh, old = now - timedelta(seconds=50), now - timedelta(seconds=70)
    for url in ("http://answers", "http://announces", "http://silent", "http://new"):
        announce(url)
    for url, announced, seen in (
        ("http://answers", old, fresh),
        ("http://announces", fresh, old),
        ("http://silent", old, old),
        ("http://new", fresh, None),
    ):
        Replica.objects.filter(url=url).update(announced_at=announced, last_seen=seen)
    left = {one.url for one in registry.sync_replicas()}
    assert left == {"http://answers", "http://announces", "http://new"}
    [event] = FleetEvent.objects.filter(action="replica.forgotten")
    assert event.target == "http://silent"


def test_there_is_an_end_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_REPLICAS", 2)
    for number in range(2):
        assert announce(f"http://r:{number + 1}").status_code == 200
    assert announce("http://r:3").status_code == 409
    assert announce("http://r:1").status_code == 200
