"""Tell the rest of the house what changed, once the change is committed.

Two audiences: browsers (the channel group of the tenant) and the caches of the web processes (a
Redis channel). Both are hints: rows are the truth, a lost message costs a cache lifetime, no more.
"""

import json
from typing import Any

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer  # type: ignore[import-untyped]
from django.db import transaction

from tenants.store import store

INVALIDATE_CHANNEL = "grafthouse.invalidate"
# The type of the channel layer's message: a consumer handles it in tenant_event(message).
MESSAGE_TYPE = "tenant.event"
# Comes with every request and makes no cached key or pointer stale.
NOT_INVALIDATING = frozenset({"usage.recorded"})


def group_name(tenant_id: int) -> str:
    return f"tenant.{tenant_id}"


def publish(tenant_id: int, event: str, data: dict[str, Any]) -> None:
    """Send `event` ("<noun>.<verb>") once the running transaction commits; at once without one.

    Synchronous code only. A store that is down is logged by Django and harms nobody.
    """
    transaction.on_commit(lambda: send(tenant_id, event, data), robust=True)


def send(tenant_id: int, event: str, data: dict[str, Any]) -> None:
    if event not in NOT_INVALIDATING:
        store().publish(INVALIDATE_CHANNEL, json.dumps({"tenant_id": tenant_id, "what": event}))
    message = {"type": MESSAGE_TYPE, "event": event, "data": data}
    async_to_sync(get_channel_layer().group_send)(group_name(tenant_id), message)
