"""/healthz, /readyz and /metrics: raw ASGI, so they answer when Django's middleware could not."""

import asyncio
import contextlib
import hmac
import math
from collections.abc import Awaitable, Callable

import orjson
from django.conf import settings
from django.db import connection
from redis.exceptions import RedisError

from gateway import metrics
from gateway.database import in_thread
from gateway.openai.http import Receive, Scope, Send
from gateway.runtime import Runtime, runtime_of

CHECK_TIMEOUT_S = 2.0


async def respond(scope: Scope, send: Send, status: int, body: bytes, content_type: str) -> None:
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


async def live(scope: Scope, receive: Receive, send: Send) -> None:
    """The process runs and its loop turns; says nothing of what it depends on."""
    await respond(scope, send, 200, b'{"status":"ok"}', "application/json")


async def ready(scope: Scope, receive: Receive, send: Send) -> None:
    """200 when a request could be served: database, counter store one replica; each is named."""
    runtime = runtime_of(scope)
    probes: dict[str, Callable[[], Awaitable[str]]] = {
        "database": check_database,
        "redis": lambda: check_redis(runtime),
        "replicas": lambda: check_replicas(runtime),
    }
    verdicts = await asyncio.gather(*(verdict(probe) for probe in probes.values()))
    checks = dict(zip(probes, verdicts, strict=True))
    is_ready = all(found == "ok" for found in checks.values())
    body = orjson.dumps({"status": "ok" if is_ready else "unavailable", "checks": checks})
    await respond(scope, send, 200 if is_ready else 503, body, "application/json")


async def verdict(probe: Callable[[], Awaitable[str]]) -> str:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await probe()
    except TimeoutError:
        return f"no answer within {CHECK_TIMEOUT_S} s"


async def check_database() -> str:
    def probe() -> str:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
        # Whatever the driver raises, it says that the database is not there; details stay in its
        # log.
        except Exception as error:  # noqa: BLE001
            return f"failed: {type(error).__name__}"
        return "ok"

    return await in_thread(probe)


async def check_redis(runtime: Runtime) -> str:
    try:
        await runtime.redis.ping()
    except (RedisError, OSError) as error:
        return f"failed: {type(error).__name__}"
    return "ok"


async def check_replicas(runtime: Runtime) -> str:
    return "ok" if runtime.replicas.is_any_ready() else "no replica is ready"


async def metrics_text(scope: Scope, receive: Receive, send: Send) -> None:
    """Open unless METRICS_TOKEN is set; then it is asked for as a bearer token."""
    if settings.METRICS_TOKEN:
        given = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(given, b"Bearer " + settings.METRICS_TOKEN.encode()):
            await respond(scope, send, 401, b"a bearer token is required\n", "text/plain")
            return
    runtime = runtime_of(scope)
    await count_tasks(runtime)
    content_type, body = metrics.render({one.url for one in runtime.replicas.snapshots()})
    await respond(scope, send, 200, body, content_type)


async def count_tasks(runtime: Runtime) -> None:
    """Beat queues a round of healing every two seconds: a long queue is a worker that is gone."""
    for queue in settings.CELERY_TASK_QUEUES:
        num_waiting = math.nan
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                num_waiting = await runtime.redis.llen(queue.name)
        metrics.TASKS_WAITING.labels(queue.name).set(num_waiting)
