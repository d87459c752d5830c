"""The synchronous client of the counter store (Valkey or Redis): events, sign-in attempts."""

from functools import cache

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

# Short: a caller holds a worker thread meanwhile.
TIMEOUT_S = 2.0


@cache
def store() -> redis.Redis:
    """One thread-safe client and pool a process."""
    return redis.Redis.from_url(
        settings.REDIS_URL,
        decode_responses=True,
        socket_timeout=TIMEOUT_S,
        socket_connect_timeout=TIMEOUT_S,
        retry=Retry(NoBackoff(), 1),
    )
