"""What both WebSockets share: JSON frames, authentication before anything else, clear closes."""

import asyncio
import logging
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

BAD_FRAME = 4400
NOT_AUTHENTICATED = 4401
AUTH_TIMEOUT_S = 10.0
# A close frame carries no more.
MAX_REASON_BYTES = 123


class Unauthenticated(Exception):
    """The socket is closed with 4401; the message is the reason."""


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

    async def connect(self) -> None:
        self.runtime = runtime_of(self.scope)
        metrics.OPEN_SOCKETS.labels(self.kind).inc()
        self._deadline = asyncio.create_task(self._close_late())
        await self.accept()

    async def _close_late(self) -> None:
        await asyncio.sleep(AUTH_TIMEOUT_S)
        if self.caller is None:
            await self.refuse(NOT_AUTHENTICATED, f"no auth frame within {AUTH_TIMEOUT_S:.0f} s")

    async def disconnect(self, code: int) -> None:
        metrics.OPEN_SOCKETS.labels(self.kind).dec()
        self._deadline.cancel()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        try:
            if text_data is None or len(text_data) > settings.MAX_BODY_BYTES:
                limit = settings.MAX_BODY_BYTES
                raise bad_request(f"expected a text frame of at most {limit} bytes")
            await self.take(parse_json(text_data))
        except Unauthenticated as error:
            await self.refuse(NOT_AUTHENTICATED, str(error))
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
        self.caller = caller
        return principal

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
        try:
            await self.send(text_data=orjson.dumps(frame).decode())
        except OSError as error:
            raise ClientGone from error

    async def refuse(self, code: int, reason: str) -> None:
        short = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
        await self.close(code, short)


def is_own_origin(origin: bytes, host: bytes) -> bool:
    """Same host and port as the request, or an origin that forms may be posted from."""
    text = origin.decode("latin-1")
    if text in settings.CSRF_TRUSTED_ORIGINS:
        return True
    return bool(host) and urlsplit(text).netloc == host.decode("latin-1")
