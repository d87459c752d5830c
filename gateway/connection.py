"""uvicorn's connections, bounded: what a client may take of a web process, and for how long.

uvicorn waits for ever for the head of a request and for a reader that has stopped, and takes any
number of headers, trailers and pipelined requests. Every web process is served with
`--http gateway.connection:HttpConnection --ws gateway.connection:SocketConnection`.
"""

import asyncio
import contextlib
import secrets
import socket
import time
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

import httptools
from django.conf import settings
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

# uvicorn's workers import this module before the application, which sets Django up.
import gateway.asgi  # noqa: F401
from gateway import metrics
from gateway.open_files import allow_many_files
from gateway.openai.errors import error_body, unavailable
from gateway.upgrade import without_upgrade
from tenants.errors import ApiError

# What one line of a head may have: the WebSocket handshake's parser takes no more.
MAX_LINE_BYTES = 8000
# Requests that came before the answer to the one that runs.
MAX_PIPELINED = 16
SWEEP_INTERVAL_S = 0.5
# A refused client is read on for so long: one that is cut off while it sends sees no answer. So is
# a WebSocket's that was sent a close frame and does not answer it; who does is closed at once.
LINGER_S = 2.0


class Watch:
    """The connections of this process, looked at twice a second.

    waiting: without a request that runs, each with when it is dropped; the longest waiting first.
    """

    def __init__(self) -> None:
        self.waiting: dict[HttpConnection, float] = {}
        self._open: set[Any] | None = None

    def begin(self, connections: set[Any]) -> None:
        if self._open is None:
            self._open = connections
            allow_many_files()
            self._sweep()

    def expect(self, connection: "HttpConnection", within_s: float) -> None:
        self.waiting.pop(connection, None)
        self.waiting[connection] = time.monotonic() + within_s

    def make_room(self) -> bool:
        """Drop who has waited longest: many that dawdle keep nobody out. False: all are served."""
        oldest = next(iter(self.waiting), None)
        if oldest is not None:
            oldest.drop("evicted")
        return oldest is not None

    def _sweep(self) -> None:
        # First: whatever befalls this one, the next comes.
        asyncio.get_running_loop().call_later(SWEEP_INTERVAL_S, self._sweep)
        now = time.monotonic()
        for late in [one for one, at in self.waiting.items() if at <= now]:
            late.drop("late")
        for connection in list(self._open or ()):
            connection.drop_if_stalled(now)


WATCH = Watch()


class Progress:
    """A mixin: a client that takes nothing of what is written to it is dropped in the end.

    Its own sender waits meanwhile; what is held for it is asyncio's buffer of 64 KiB.
    """

    transport: asyncio.Transport
    _num_unsent_bytes = 0
    _moved_at = 0.0

    def is_blocked(self) -> bool:
        raise NotImplementedError

    def drop_if_stalled(self, now: float) -> None:
        # Nobody writes to a blocked or closing connection, so its buffer shrinks or stands still.
        num_unsent = self.transport.get_write_buffer_size()
        is_still = num_unsent >= self._num_unsent_bytes > 0
        if not is_still or not (self.is_blocked() or self.transport.is_closing()):
            self._moved_at = now
        self._num_unsent_bytes = num_unsent
        if now - self._moved_at >= settings.WRITE_TIMEOUT_S:
            self.drop("stalled")

    def drop(self, reason: str) -> None:
        """At once, without what is still unsent."""
        metrics.DROPPED.labels(reason).inc()
        self.transport.abort()


class HttpConnection(Progress, HttpToolsProtocol):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.timeout_keep_alive = settings.KEEP_ALIVE_TIMEOUT_S
        self._running: RequestResponseCycle | None = None
        self._is_refused = self._is_in_head = False
        # Since something came of it: a head that never ends, or trailers.
        self._num_idle_bytes = 0

    def is_blocked(self) -> bool:
        return bool(self.flow.write_paused)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        send_at_once(transport)
        WATCH.begin(self.connections)
        is_full = len(self.connections) > settings.MAX_CONNECTIONS and not WATCH.make_room()
        WATCH.expect(self, settings.HEAD_TIMEOUT_S)
        if is_full:
            self.refuse(unavailable("overloaded", "This server has no connection to spare."))

    def connection_lost(self, exc: Exception | None) -> None:
        WATCH.waiting.pop(self, None)
        if self._running is not None and not self._running.response_complete:
            # uvicorn tells the newest of a pipeline alone, and it is the oldest that runs.
            self._running.disconnected = True
            self._running.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def drop(self, reason: str) -> None:
        WATCH.waiting.pop(self, None)
        if self._is_refused:
            self.transport.abort()
        elif reason == "late" and self._is_in_head:
            message = f"The request's head did not arrive within {settings.HEAD_TIMEOUT_S} s."
            self.refuse(ApiError("request_timeout", 408, message), reason)
        else:
            super().drop(reason)

    def refuse(self, error: ApiError, reason: str = "refused") -> None:
        """Answer what is no request of any application's, and read no more of it."""
        if self._is_refused:
            return
        self._is_refused = True
        metrics.DROPPED.labels(reason).inc()
        if self.cycle is not None and not self.cycle.response_complete:
            # An answer is on its way: nothing may be written into it.
            self.transport.abort()
            return
        self._answer(error)
        WATCH.expect(self, LINGER_S)

    def _answer(self, error: ApiError) -> None:
        body = error_body(error)
        reason = HTTPStatus(error.status).phrase
        head = f"HTTP/1.1 {error.status} {reason}\r\ndate: {formatdate(usegmt=True)}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        # Of no request that is written down: clients show it with every error.
        head += f"x-request-id: {secrets.token_hex(16)}\r\n"
        for name, value in error.headers.items():
            head += f"{name}: {value}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def send_400_response(self, msg: str) -> None:
        self.refuse(ApiError("invalid_http", 400, msg))

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._num_idle_bytes += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._num_idle_bytes > settings.MAX_HEADER_BYTES:
            self.refuse(head_too_large())

    def _parse(self, data: bytes) -> None:
        """uvicorn's, but for an upgrade to anything else than a WebSocket: what follows its head is
        a body, which uvicorn loses. Java's client offers HTTP/2 with every first request.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._declines_upgrade():
                method, version = self.parser.get_method(), self.parser.get_http_version()
                head = without_upgrade(method, self.url, version, self.headers)
                self.parser = httptools.HttpRequestParser(self)
                self._parse(head + data[upgrade.args[0] :])
            elif self._should_upgrade():
                self.handle_websocket_upgrade()
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _declines_upgrade(self) -> bool:
        """Whether this head is read again without it, which no application has seen yet."""
        if self._is_refused or not self.parser.should_upgrade() or self._should_upgrade():
            return False
        return any(name == b"upgrade" for name, _ in self.headers)

    def on_message_begin(self) -> None:
        if self._is_refused:
            return
        super().on_message_begin()
        self._is_in_head = True
        if self in WATCH.waiting:
            WATCH.expect(self, settings.HEAD_TIMEOUT_S)

    def on_header(self, name: bytes, value: bytes) -> None:
        # Of trailers too, which would make the scope grow while its request runs.
        if len(self.headers) >= settings.MAX_HEADERS:
            message = f"The request has more than {settings.MAX_HEADERS} headers."
            self.refuse(ApiError("headers_too_large", 431, message))
        elif not self._is_refused:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._num_idle_bytes, self._is_in_head = 0, False
        if error := self._head_error():
            self.refuse(error)
        if self._is_refused or self._declines_upgrade():
            return
        WATCH.waiting.pop(self, None)
        super().on_headers_complete()

    def _head_error(self) -> ApiError | None:
        if len(self.url) > MAX_LINE_BYTES:
            return ApiError("uri_too_long", 414, f"The URL is longer than {MAX_LINE_BYTES} bytes.")
        sizes = [len(name) + len(value) for name, value in self.headers]
        if max(sizes, default=0) > MAX_LINE_BYTES:
            message = f"A header is longer than {MAX_LINE_BYTES} bytes."
            return ApiError("headers_too_large", 431, message)
        if sum(sizes) > settings.MAX_HEADER_BYTES:
            return head_too_large()
        if len(self.pipeline) >= MAX_PIPELINED:
            message = f"More than {MAX_PIPELINED} requests are in the pipeline."
            return ApiError("too_many_requests", 400, message)
        return None

    def on_body(self, body: bytes) -> None:
        self._num_idle_bytes = 0
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_refused and not self._declines_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:
            # The rest of a body that nobody wanted must not hold the connection either.
            WATCH.expect(self, settings.KEEP_ALIVE_TIMEOUT_S)

    def handle_websocket_upgrade(self) -> None:
        if not self._is_refused:
            WATCH.waiting.pop(self, None)
            super().handle_websocket_upgrade()


class SocketConnection(Progress, WebSocketsSansIOProtocol):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # A larger frame is not read to its end: 1009.
        self.conn.max_message_size = settings.MAX_BODY_BYTES
        self.close_timeout = LINGER_S

    def is_blocked(self) -> bool:
        return not self.writable.is_set()


def send_at_once(transport: asyncio.Transport) -> None:
    """uvicorn takes an inherited socket for a Unix one, for which no loop does this: a token would
    then wait for the client's word on the one before.
    """
    # Of a Unix socket it is refused.
    with contextlib.suppress(OSError):
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def head_too_large() -> ApiError:
    message = f"The request's head is larger than {settings.MAX_HEADER_BYTES} bytes."
    return ApiError("headers_too_large", 431, message)
