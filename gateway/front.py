"""Who answers what: raw ASGI for /v1, probes and metrics, Channels for WebSockets, Django for the
rest and, behind a door of /v1's own, for uploads.
"""

import gc
import logging
import sys
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from channels.auth import AuthMiddlewareStack  # type: ignore[import-untyped]
from channels.layers import get_channel_layer  # type: ignore[import-untyped]
from channels.routing import URLRouter  # type: ignore[import-untyped]
from django.core.asgi import get_asgi_application
from django.db import connections
from django.urls import re_path

from gateway import health
from gateway.body_limit import bounded
from gateway.consumers import ChatConsumer
from gateway.events import EventsConsumer
from gateway.openai import uploads
from gateway.openai.app import WITHOUT_V1
from gateway.openai.app import app as openai_app
from gateway.openai.http import Receive, Scope, Send, tidy_path
from gateway.runtime import STATE_KEY, Runtime

log = logging.getLogger(__name__)

django: Any = get_asgi_application()
sockets = AuthMiddlewareStack(
    URLRouter(
        [
            re_path(r"^ws/v1/chat/?$", ChatConsumer.as_asgi()),
            re_path(r"^ws/v1/events/?$", EventsConsumer.as_asgi()),
        ]
    )
)
SOCKET_PATHS = {"/ws/v1/chat", "/ws/v1/events"}
PROBES = {"/healthz": health.live, "/readyz": health.ready, "/metrics": health.metrics_text}


async def django_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Django runs each request in a thread of its own, which would keep its connection to the
    database (CONN_MAX_AGE) for a next request that never comes, until the collector finds it:
    hundreds, more than a PostgreSQL has.
    """
    # The one that Django would open; it uses the one that it finds.
    async with ThreadSensitiveContext():
        try:
            await django(scope, receive, send)
        finally:
            await sync_to_async(connections.close_all)()


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await lifespan(scope, receive, send)
    elif scope["type"] == "websocket":
        await socket(scope, receive, send)
    else:
        await http(scope, receive, send)


async def http(scope: Scope, receive: Receive, send: Send) -> None:
    path = tidy_path(scope["path"])
    if uploads.is_upload_path(path):
        await uploads.app(django_app, scope, receive, send)
    elif path == "/v1" or path.startswith("/v1/") or path in WITHOUT_V1:
        await openai_app(scope, receive, send)
    elif path in PROBES:
        await PROBES[path](scope, receive, send)
    else:
        await bounded(django_app, scope, receive, send)


async def socket(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"].rstrip("/") in SOCKET_PATHS:
        await sockets(scope, receive, send)
        return
    # Closing before accepting refuses the handshake.
    await receive()
    await send({"type": "websocket.close", "code": 4404})


def tune_interpreter() -> None:
    """For a loop beside threads, in a process that keeps what its start-up made.

    A full collection stops everybody for 60 ms, several times a minute under load: it walks what
    start-up made no more. A request that is answered leaves nothing to collect; one that runs has
    200 objects to walk, and 10,000 of those are 2 to 5 ms: garbage is looked for when 50,000 more
    were made than freed. A thread that computes gives way after 0.5 ms instead of 5.
    """
    # Its module, imported by the first request, would stop everybody for some 50 ms.
    get_channel_layer()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    sys.setswitchinterval(0.0005)


async def lifespan(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    if "gateway.connection" not in sys.modules:
        log.warning("connections have no bounds: serve with the options of embedded.WEB_COMMAND")
    runtime = Runtime()
    try:
        await runtime.start()
    except Exception as error:
        log.exception("start-up failed")
        await send({"type": "lifespan.startup.failed", "message": repr(error)})
        return
    scope["state"][STATE_KEY] = runtime
    tune_interpreter()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await runtime.stop()
    await send({"type": "lifespan.shutdown.complete"})
