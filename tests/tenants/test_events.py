import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer  # type: ignore[import-untyped]
from django.conf import settings
from django.db import connections, transaction
from redis import Redis
from redis.client import PubSub

from tenants import store as store_module
from tenants.audit import Actor, record
from tenants.events import INVALIDATE_CHANNEL, group_name, publish
from tenants.keys import create_key
from tenants.models import ApiKey, AuditEvent
from tenants.scope import unscoped
from tests.factories import get_acme
from tests.services import free_port

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def channel() -> Iterator[PubSub]:
    client = Redis.from_url(settings.REDIS_URL)
    channel: PubSub = client.pubsub()  # type: ignore[no-untyped-call]
    channel.subscribe(INVALIDATE_CHANNEL)
    channel.get_message(timeout=1)
    yield channel
    channel.close()
    client.close()


def heard(channel: PubSub) -> list[dict[str, Any]]:
    messages = []
    while message := channel.get_message(timeout=0.3):
        notice = json.loads(message["data"])
        assert 0 <= time.time() - notice.pop("sent_at") < 10
        messages.append(notice)
    return messages


def test_it_works(channel: PubSub) -> None:
    publish(7, "key.changed", {"public_id": "x"})
    assert heard(channel) == [{"tenant_id": 7, "what": "key.changed"}]


async def test_browsers_are_told() -> None:
    layer = get_channel_layer()
    name = await layer.new_channel()
    await layer.group_add(group_name(7), name)
    await sync_to_async(publish)(7, "key.changed", {"public_id": "x"})
    await sync_to_async(connections.close_all)()
    assert await layer.receive(name) == {
        "type": "tenant.event",
        "event": "key.changed",
        "data": {"public_id": "x"},
    }


def test_only_what_was_committed_is_told(channel: PubSub) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        publish(7, "key.changed", {})
        raise ZeroDivisionError
    with transaction.atomic():
        publish(8, "key.changed", {})
        assert heard(channel) == []
    assert heard(channel) == [{"tenant_id": 8, "what": "key.changed"}]


def test_once_in_a_transaction(channel: PubSub) -> None:
    with transaction.atomic():
        for _ in range(3):
            with transaction.atomic():
                publish(7, "key.changed", {"public_id": "x"})
        publish(7, "key.changed", {"public_id": "y"})
    assert len(heard(channel)) == 2


def test_usage_makes_no_cache_stale(channel: PubSub) -> None:
    publish(7, "usage.recorded", {"adapter": ""})
    assert heard(channel) == []


@pytest.mark.case("C139")
def test_a_store_that_is_down_harms_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Redis(port=free_port(), decode_responses=True)
    monkeypatch.setattr("tenants.events.store", lambda: gone)
    create_key(Actor(get_acme().id, "system"), "ci", ["inference"])
    with unscoped():
        assert ApiKey.objects.count() == 1
    assert store_module.store().ping()


def test_an_audit_row_stands_or_falls_with_its_act() -> None:
    actor = Actor(get_acme().id, "system")
    with pytest.raises(RuntimeError, match="transaction"):
        record(actor, "x.y", "z")
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        record(actor, "x.y", "z")
        raise ZeroDivisionError
    with transaction.atomic():
        record(actor, "x.y", "z", before={"a": 1}, after={"a": 2})
    with unscoped():
        (event,) = AuditEvent.objects.all()
    assert (event.actor, event.before, event.after) == ("system", {"a": 1}, {"a": 2})
