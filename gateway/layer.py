"""The channel layer of this house: it outlives a store that is slow or away."""

import asyncio
import logging
from typing import Any

from channels_redis.core import RedisChannelLayer
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

FIRST_DELAY_S, MAX_DELAY_S = 0.1, 5.0
# What a consumer gets in place of the messages that it may have missed.
GAP: dict[str, Any] = {"type": "layer.gap"}


class PatientLayer(RedisChannelLayer):  # type: ignore[misc]
    """A time-out would end the consumer that reads, and with it an open socket. Here it tries
    again, and once it is through the consumer is told that messages may be missing.
    """

    async def receive(self, channel: str) -> dict[str, Any]:
        delay_s = FIRST_DELAY_S
        while True:
            try:
                if delay_s > FIRST_DELAY_S:
                    await self.connection(self.consistent_hash(channel)).ping()
                    return dict(GAP)
                found: dict[str, Any] = await super().receive(channel)
                return found
            except (RedisError, OSError) as error:
                log.warning("the channel layer is away: %s: %s", type(error).__name__, error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, MAX_DELAY_S)
