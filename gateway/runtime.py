"""What one web process holds while it runs: the upstream session, the replica table, caches, quota,
the usage writer.

Made at ASGI start-up, handed to every request in scope["state"], closed in order at shutdown.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import redis.asyncio
from django.conf import settings
from django.db import DatabaseError
from redis.exceptions import RedisError

from gateway import invalidation, metrics
from gateway.access_log import AccessLog
from gateway.bodies import Bodies
from gateway.database import checkpoint_forever
from gateway.database_process import DatabaseProcess
from gateway.far_tapes import FarTapes
from gateway.lookups import Lookups
from gateway.openai.errors import unavailable
from gateway.replicas import ReplicaTable
from gateway.tapes import Tapes
from gateway.upstream import open_session
from gateway.usage_writer import UsageWriter
from tenants.notices import Mark, tell
from tenants.quota import Quota

log = logging.getLogger(__name__)

Result = TypeVar("Result")

RESTART_INTERVAL_S = 1.0
DRAIN_TIMEOUT_S = 10.0
STATE_KEY = "grafthouse"


class Runtime:
    def __init__(self) -> None:
        self.database = DatabaseProcess()
        self.session = open_session()
        self.replicas = ReplicaTable(self.session, self.database.read)
        self.lookups = Lookups(self.database.read)
        self.redis = open_store()
        self.quota = Quota(tell=tell_and_count)
        self.writer = UsageWriter(self.database.write)
        self.access_log = AccessLog()
        # What outlives the request or message that began it.
        self._background: set[asyncio.Task[Any]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._writing: asyncio.Task[None] | None = None
        self._num_streams = 0
        self.bodies = Bodies()
        self.tapes = Tapes()
        self.far_tapes = FarTapes(self.tapes, self.redis, self.spawn)
        # Open WebSockets: how many a tenant has, and those without a known caller, oldest first.
        self.num_sockets: Counter[int] = Counter()
        self.strangers: dict[Any, None] = {}

    @contextmanager
    def slot(self) -> Iterator[None]:
        """One of the process's MAX_STREAMS, from before a request is reserved until it is settled.

        Raises ApiError 503.
        """
        if self._num_streams >= settings.MAX_STREAMS:
            message = f"This server runs {settings.MAX_STREAMS} requests. Try again shortly."
            metrics.REFUSED.labels("overloaded", "server_error").inc()
            raise unavailable("overloaded", message)
        self._num_streams += 1
        try:
            yield
        finally:
            self._num_streams -= 1

    async def start(self) -> None:
        self.access_log.start()
        self._writing = asyncio.create_task(self.writer.run())
        # The first poll is awaited, so that the first request finds the fleet.
        await asyncio.gather(self.replicas.refresh(), self.replicas.read_fleet())
        polls = (self.replicas.poll_forever, self.replicas.follow_fleet)
        # Twice a lifetime, so that one may be late.
        period_s = settings.CACHE_TTL_S / 2
        changes = (
            partial(invalidation.follow, self.lookups.drop),
            partial(invalidation.poll, self.database.read, self.lookups.prove, period_s),
            partial(invalidation.forget_forever, self.database.read),
        )
        writes = (
            self.writer.beat_forever,
            self.writer.tell_forever,
            partial(checkpoint_forever, self.database.read),
        )
        for loop in (*polls, *changes, self.far_tapes.follow, *writes):
            self._loops.append(asyncio.create_task(keep_running(loop)))

    async def stop(self) -> None:
        """Settle what is still open, write what is queued, then close: in this order nothing is
        lost.
        """
        await self.tapes.close()
        if self._background:
            await asyncio.wait(self._background, timeout=DRAIN_TIMEOUT_S)
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self.writer.stop()
        if self._writing is not None:
            await self._writing
        await self.database.stop()
        await self.quota.close()
        await self.redis.aclose()
        await self.session.close()
        self.access_log.close()

    def spawn(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Run to the end whatever happens to the caller; errors nobody awaits are logged by
        asyncio.
        """
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def open_store() -> "redis.asyncio.Redis":
    return redis.asyncio.Redis.from_url(
        settings.REDIS_URL, socket_connect_timeout=2, health_check_interval=5
    )


async def keep_running(loop: Callable[[], Awaitable[None]]) -> None:
    """A background loop never ends by an error; it is logged, and begun again."""
    while True:
        try:
            await loop()
        except RedisError as error:
            log.warning("the counter store is away: %s", error)
        except DatabaseError as error:
            log.warning("the database is away: %s", error)
        except Exception:
            log.exception("a background loop failed and is started again")
        await asyncio.sleep(RESTART_INTERVAL_S)


def runtime_of(scope: Any) -> Runtime:
    """The process's runtime, as the ASGI server's lifespan left it in the scope."""
    runtime = scope.get("state", {}).get(STATE_KEY)
    if not isinstance(runtime, Runtime):
        raise RuntimeError("start-up did not run: serve gateway.asgi with lifespan on (uvicorn)")
    return runtime


async def tell_and_count(mark: Mark, used: int) -> None:
    if await tell(mark, used):
        metrics.BUDGET_NOTICES.labels(mark.kind, str(mark.percent)).inc()
