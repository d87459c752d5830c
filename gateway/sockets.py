"""What both WebSockets share: JSON frames, authentication before anything else, clear closes."""

import asyncio
import logging
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson
from channels.generic.websocket import AsyncWebsocketConsumer  # type: ignore[import-untyped]
from django.conf import settings

from gateway import metrics
from gateway.admission import authenticate, authenticate_member
from gateway.openai.http import ClientGone
from gateway.openai.schema import bad_request, parse_json
from gateway.runtime import Runtime, runtime_of
from tenants.auth import Principal
from tenants.errors import ApiError

log = logging.getLogger(__name__)

# RFC 6455's own: the client does well to come back later.
TRY_AGAIN = 1013
BAD_FRAME = 4400
NOT_AUTHENTICATED = 4401
IDLE = 4408
TOO_MANY_SOCKETS = 4429
AUTH_TIMEOUT_S = 10.0
# Of sockets whose caller is not known yet, in one process; a new one replaces the oldest.
MAX_STRANGERS = 256
# A close frame carries no more.
MAX_REASON_BYTES = 123


class Unauthenticated(Exception):
    """The socket is closed with 4401; the message is the reason."""


class TooManySockets(Exception):
    """The socket is closed with 4429; the message is the reason."""


@dataclass(frozen=True)
class KeyHolder:
    api_key: str


@dataclass(frozen=True)
class Visitor:
    """A signed-in browser that speaks for one of its tenants."""

    user_id: int
    tenant: str


Caller = KeyHolder | Visitor


async def principal_of(runtime: Runtime, caller: Caller) -> Principal:
    """Asked again for every use: a revoked key or a removed member is refused on an open socket
    too.
    """
    if isinstance(caller, KeyHolder):
        return await authenticate(runtime, caller.api_key)
    return await authenticate_member(runtime, caller.user_id, caller.tenant)


class JsonSocket(AsyncWebsocketConsumer):  # type: ignore[misc]
    """A consumer whose subclass answers frames in take(frame) once the caller is known."""

    kind: str
    runtime: Runtime
    caller: Caller | None = None
    # The connection is over; is_goodbye: one side said so, nothing was cut.
    is_gone = is_goodbye = False
    _tenant_id: int | None = None

    async def connect(self) -> None:
        self.runtime = runtime_of(self.scope)
        metrics.OPEN_SOCKETS.labels(self.kind).inc()
        self._heard_at = time.monotonic()
        self._watching = asyncio.create_task(self._expect_caller())
        await self.accept()
        await self._replace_oldest_stranger()

    async def _replace_oldest_stranger(self) -> None:
        """Sockets that never say who they are keep nobody out."""
        strangers = self.runtime.strangers
        strangers[self] = None
        if len(strangers) > MAX_STRANGERS:
            oldest = next(iter(strangers))
            del strangers[oldest]
            await oldest.refuse(NOT_AUTHENTICATED, "others came before an auth frame did")

    async def _expect_caller(self) -> None:
        await asyncio.sleep(AUTH_TIMEOUT_S)
        await self.refuse(NOT_AUTHENTICATED, f"no auth frame within {AUTH_TIMEOUT_S:.0f} s")

    async def _expect_frames(self) -> None:
        while (left_s := self._left_s()) > 0:
            await asyncio.sleep(left_s)
        reason = f"nothing was sent or asked for {settings.SOCKET_IDLE_TIMEOUT_S} s"
        await self.refuse(IDLE, reason)

    def _left_s(self) -> float:
        if self.is_busy():
            self._heard_at = time.monotonic()
        return self._heard_at + settings.SOCKET_IDLE_TIMEOUT_S - time.monotonic()

    def is_busy(self) -> bool:
        """Whether it waits for us, not we for it."""
        return False

    async def websocket_disconnect(self, message: dict[str, Any]) -> None:
        # A closing handshake has a reason, if an empty one; a connection that was lost has none.
        self.is_gone = True
        self.is_goodbye = "reason" in message
        await super().websocket_disconnect(message)

    async def disconnect(self, code: int) -> None:
        metrics.OPEN_SOCKETS.labels(self.kind).dec()
        self._watching.cancel()
        self.runtime.strangers.pop(self, None)
        if self._tenant_id is not None:
            self.runtime.num_sockets[self._tenant_id] -= 1
            if not self.runtime.num_sockets[self._tenant_id]:
                del self.runtime.num_sockets[self._tenant_id]

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        self._heard_at = time.monotonic()
        await self.attempt(self._read(text_data))

    async def _read(self, text: str | None) -> None:
        if text is None or len(text) > settings.MAX_BODY_BYTES:
            raise bad_request(f"expected a text frame of at most {settings.MAX_BODY_BYTES} bytes")
        await self.take(parse_json(text))

    async def attempt(self, work: Awaitable[None]) -> None:
        """What the work raises closes the socket with its code."""
        try:
            await work
        except Unauthenticated as error:
            await self.refuse(NOT_AUTHENTICATED, str(error))
        except TooManySockets as error:
            await self.refuse(TOO_MANY_SOCKETS, str(error))
        except ApiError as error:
            await self.refuse(BAD_FRAME, error.message)
        except ClientGone:
            log.debug("a socket closed while it was written to")

    async def take(self, frame: dict[str, Any]) -> None:
        """Answer one frame. ApiError closes with 4400, Unauthenticated with 4401."""
        if frame.get("type") != "ping":
            raise bad_request(f"unknown frame type {str(frame.get('type'))[:40]!r}")
        await self.write({"type": "pong"})

    async def identify(self, caller: Caller) -> Principal:
        """Admit the socket's caller.

        Unauthenticated for a bad key and for a stranger to the tenant.
        """
        try:
            principal = await principal_of(self.runtime, caller)
        except ApiError as error:
            raise Unauthenticated(error.message) from error
        self.runtime.strangers.pop(self, None)
        self._count(principal.tenant_id)
        self.caller = caller
        self._watching.cancel()
        self._watching = asyncio.create_task(self._expect_frames())
        return principal

    def _count(self, tenant_id: int) -> None:
        limit = settings.MAX_SOCKETS_PER_TENANT
        if self.runtime.num_sockets[tenant_id] >= limit:
            raise TooManySockets(f"the tenant has {limit} sockets open on this server, its limit")
        self.runtime.num_sockets[tenant_id] += 1
        self._tenant_id = tenant_id

    def visitor(self, tenant: str) -> Visitor:
        """The session's user, if the page that opened the socket is ours: browsers send cookies
        from any page.
        """
        user = self.scope.get("user")
        if user is None or not user.is_authenticated:
            raise Unauthenticated("sign in first: there is no session")
        headers = dict(self.scope["headers"])
        if not is_own_origin(headers.get(b"origin", b""), headers.get(b"host", b"")):
            raise Unauthenticated("the socket was opened by a page of another origin")
        return Visitor(user.pk, tenant)

    async def write(self, frame: dict[str, Any]) -> None:
        """Waits while the client does not read. Raises ClientGone."""
        await self.write_text(orjson.dumps(frame).decode())

    async def write_text(self, text: str) -> None:
        if self.is_gone:
            raise ClientGone
        try:
            await self.send(text_data=text)
        except OSError as error:
            raise ClientGone from error

    async def refuse(self, code: int, reason: str) -> None:
        if self.is_gone:
            return
        self.is_gone = True
        short = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
        await self.close(code, short)


def is_own_origin(origin: bytes, host: bytes) -> bool:
    """Same host and port as the request, or an origin that forms may be posted from."""
    text = origin.decode("latin-1")
    if text in settings.CSRF_TRUSTED_ORIGINS:
        return True
    return bool(host) and urlsplit(text).netloc == host.decode("latin-1")
