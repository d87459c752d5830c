"""What changed elsewhere, by the store's publish and subscribe, for the caches of this process."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import redis.asyncio
from django.conf import settings
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError

from gateway import metrics
from tenants.events import INVALIDATE_CHANNEL

# Silence after which the store is asked whether it is there, and then given up.
SILENCE_S = 1.0

# Forgets one tenant's entries; None: everybody's.
Drop = Callable[[int | None], None]


@dataclass(frozen=True)
class Notice:
    """sent_at: when the change was committed, by the sender's clock; None: not said."""

    tenant_id: int | None
    sent_at: float | None


async def follow(drop: Drop) -> None:
    """Drop what notices name. Raises RedisError when the store is lost: then begin again."""
    # A client that reconnects by itself would not say that messages may be missing.
    client = redis.asyncio.Redis.from_url(
        settings.REDIS_URL, socket_connect_timeout=2, retry=Retry(NoBackoff(), 0)
    )
    try:
        async with client.pubsub() as channel:
            await channel.subscribe(INVALIDATE_CHANNEL)
            await _take_forever(channel, drop)
    finally:
        metrics.INVALIDATIONS_FOLLOWED.set(0)
        await client.aclose()


async def _take_forever(channel: PubSub, drop: Drop) -> None:
    is_asked = False
    while True:
        message = await channel.get_message(timeout=SILENCE_S)
        if message is None:
            if is_asked:
                raise ConnectionError(f"no answer within {SILENCE_S} s")
            await channel.ping()
        elif message["type"] == "subscribe":
            # What was sent before it is missing.
            drop(None)
            metrics.INVALIDATIONS_FOLLOWED.set(1)
        elif message["type"] == "message":
            _take(message["data"], drop)
        is_asked = message is None


def _take(raw: bytes, drop: Drop) -> None:
    notice = read_notice(raw)
    drop(notice.tenant_id)
    if notice.sent_at is not None:
        # Two machines' clocks may differ by more than a notice takes.
        metrics.INVALIDATION_DELAY.observe(max(0.0, time.time() - notice.sent_at))


def read_notice(raw: bytes) -> Notice:
    """What is not understood names no tenant, which means all."""
    try:
        fields = json.loads(raw)
        tenant_id, sent_at = fields["tenant_id"], fields.get("sent_at")
    except (ValueError, KeyError, TypeError, AttributeError):
        return Notice(None, None)
    return Notice(
        tenant_id if isinstance(tenant_id, int) else None,
        sent_at if isinstance(sent_at, float) else None,
    )
