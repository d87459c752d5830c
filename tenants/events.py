"""Tell the rest of the house what changed, once the change is committed.

Two audiences: browsers (the channel group of the tenant) and the caches of the web processes (a
Redis channel). Both are hints: rows are the truth, and the change log tells within a second of what
a lost message did not.
"""

import json
import logging
import time
from dataclasses import dataclass
from typing import Any

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer  # type: ignore[import-untyped]
from django.db import connection, transaction
from redis.exceptions import RedisError

from tenants.store import store

log = logging.getLogger(__name__)

INVALIDATE_CHANNEL = "grafthouse.invalidate"
# The type of the channel layer's message: a consumer handles it in tenant_event(message).
MESSAGE_TYPE = "tenant.event"
# Come often and make no cached key or pointer stale.
NOT_INVALIDATING = frozenset(
    {"usage.recorded", "budget.reached", "evaluation.changed", "validation.changed"}
)


def group_name(tenant_id: int) -> str:
    return f"tenant.{tenant_id}"


@dataclass(frozen=True)
class Sending:
    tenant_id: int
    event: str
    # JSON, so that two equal events are equal.
    data: str

    def __call__(self) -> None:
        # The change is committed: whoever made it must not fail for the telling.
        try:
            self.send()
        except (RedisError, OSError) as error:
            log.warning("%s of tenant %d was told to nobody: %s", self.event, self.tenant_id, error)

    def send(self) -> None:
        if self.event not in NOT_INVALIDATING:
            notice = {"tenant_id": self.tenant_id, "what": self.event, "sent_at": time.time()}
            store().publish(INVALIDATE_CHANNEL, json.dumps(notice))
        async_to_sync(show)(self.tenant_id, self.event, json.loads(self.data))


async def show(tenant_id: int, event: str, data: dict[str, Any]) -> None:
    """To the tenant's pages, now. Raises RedisError."""
    message = {"type": MESSAGE_TYPE, "event": event, "data": data}
    await get_channel_layer().group_send(group_name(tenant_id), message)


def publish(tenant_id: int, event: str, data: dict[str, Any]) -> None:
    """Send `event` ("<noun>.<verb>") once the running transaction commits; at once without one.

    Synchronous code only. Said twice in one transaction it is sent once. A store that is down is
    logged and harms nobody.
    """
    sending = Sending(tenant_id, event, json.dumps(data, sort_keys=True))
    # An equal one in the queue outlives this one: savepoints are undone last in, first out.
    if all(hook[1] != sending for hook in connection.run_on_commit):
        transaction.on_commit(sending)
