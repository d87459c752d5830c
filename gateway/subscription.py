"""One channel of the store's publish and subscribe, followed until it may have missed something."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import redis.asyncio
from django.conf import settings
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError

# Silence after which the store is asked whether it is there, and then given up.
SILENCE_S = 1.0


async def messages(channel: str) -> AsyncGenerator[bytes | None, None]:
    """None once subscribed: what was sent before it is missing; then every message.

    Raises RedisError when the store is lost: then begin again.
    """
    # A client that reconnects by itself would not say that messages may be missing.
    client = redis.asyncio.Redis.from_url(
        settings.REDIS_URL, socket_connect_timeout=2, retry=Retry(NoBackoff(), 0)
    )
    try:
        async with client.pubsub() as subscription:
            await subscription.subscribe(channel)
            async with aclosing(_heard(subscription)) as heard:
                async for one in heard:
                    yield one
    finally:
        await client.aclose()


async def _heard(subscription: PubSub) -> AsyncGenerator[bytes | None, None]:
    is_asked = False
    while True:
        message = await subscription.get_message(timeout=SILENCE_S)
        if message is None:
            if is_asked:
                raise ConnectionError(f"no answer within {SILENCE_S} s")
            await subscription.ping()
        elif message["type"] == "subscribe":
            yield None
        elif message["type"] == "message":
            yield message["data"]
        is_asked = message is None
