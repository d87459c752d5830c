"""Raw ASGI, the little that /v1 needs: headers in, a bounded body in, answers out."""

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson
from django.conf import settings

from gateway.access_log import Visit
from gateway.bodies import HeldBody
from gateway.openai.errors import error_body
from tenants.errors import ApiError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

LINGER_S = 2.0
# What a client may call its request; anything else is not echoed.
CLIENT_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,1000}")
EXPOSED_HEADERS = (
    "x-request-id, x-client-request-id, retry-after, retry-after-ms, x-should-retry, "
    "x-ratelimit-limit-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-requests, "
    "x-ratelimit-remaining-tokens, x-ratelimit-reset-requests, x-ratelimit-reset-tokens"
)


def tidy_path(path: str) -> str:
    """One spelling of it: doubled and trailing slashes come of base URLs that end in one, and a
    redirect would lose the request.
    """
    return "/" + "/".join(filter(None, path.split("/")))


class ClientGone(Exception):
    """The client closed its connection before its request was read."""


class Request:
    """One HTTP request below /v1. request_id is ours: a client's own is only echoed."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path = tidy_path(scope["path"])
        self.query: bytes = scope.get("query_string", b"")
        self.headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        self.request_id = secrets.token_hex(16)
        self.received_at = time.monotonic()
        self.visit = Visit(self.request_id, self.received_at)
        self.route = "other"
        self.status = 0
        # Before its answer was whole.
        self.has_left = False
        self._receive = receive
        self._send = send
        # Added to whatever is answered, errors too: rate limits once they are known.
        self.answer_headers: dict[str, str] = {"x-request-id": self.request_id}
        self._echo_client_id()
        self._allow_origin()

    def _echo_client_id(self) -> None:
        given = self.headers.get("x-request-id", "")
        if CLIENT_REQUEST_ID.fullmatch(given):
            self.answer_headers["x-client-request-id"] = given

    def _allow_origin(self) -> None:
        if not settings.CORS_ORIGINS:
            return
        self.answer_headers["vary"] = "origin"
        if (origin := self.headers.get("origin")) in settings.CORS_ORIGINS:
            self.answer_headers["access-control-allow-origin"] = str(origin)
            self.answer_headers["access-control-expose-headers"] = EXPOSED_HEADERS

    async def read_body(self, held: HeldBody) -> bytes:
        """The body; 413 as soon as it is known to be too long, 503 when there is no room for it,
        415 for an encoded one.

        Media types are not judged.
        """
        if self.headers.get("content-encoding", "identity") != "identity":
            raise ApiError("unsupported_media_type", 415, "Send the body without content-encoding.")
        try:
            async with asyncio.timeout(settings.BODY_TIMEOUT_S):
                return await self._read_parts(held)
        except TimeoutError:
            message = f"The request body did not arrive within {settings.BODY_TIMEOUT_S} s."
            raise ApiError(
                "request_timeout", 408, message, headers={"connection": "close"}
            ) from None

    async def _read_parts(self, held: HeldBody) -> bytes:
        parts = bytearray()
        try:
            make_room(held, int(self.headers.get("content-length", "0")))
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                parts += message.get("body", b"")
                make_room(held, len(parts))
                if not message.get("more_body", False):
                    return bytes(parts)
        except ApiError as error:
            parts.clear()
            await self._discard()
            # What is left unread must not be taken for the next request.
            error.headers["connection"] = "close"
            raise

    async def _discard(self) -> None:
        """Read on for a moment: a client that is cut off while it sends never sees the answer."""
        if "expect" in self.headers:
            # It waits to be asked.
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while (await self._receive()).get("more_body", False):
                    pass

    async def disconnected(self) -> None:
        """Returns when the client has closed the connection. Only after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        both = self.answer_headers | headers
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in both.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, body: bytes, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """A whole JSON answer; HEAD gets the same head and no body."""
        given = {"content-type": "application/json", "content-length": str(len(body))}
        await self.start(status, given | (headers or {}))
        await self.write(b"" if self.method == "HEAD" else body, more=False)

    async def answer_json(self, value: dict[str, Any]) -> None:
        await self.answer(200, orjson.dumps(value))

    async def answer_error(self, error: ApiError) -> None:
        self.visit.error_code = error.code
        await self.answer(error.status, error_body(error), error.headers)

    async def answer_options(self, allow: str) -> None:
        """A preflight, answered without a key; origins that are not configured get no permission in
        it.
        """
        headers = {"allow": allow, "content-length": "0"}
        if "access-control-allow-origin" in self.answer_headers:
            asked = self.headers.get("access-control-request-headers", "")
            headers["access-control-allow-methods"] = allow
            headers["access-control-max-age"] = "600"
            if HEADER_NAMES.fullmatch(asked):
                headers["access-control-allow-headers"] = asked
        await self.start(204, headers)
        await self.write(b"", more=False)


def make_room(held: HeldBody, num_bytes: int) -> None:
    if num_bytes > settings.MAX_BODY_BYTES:
        raise too_large()
    held.grow_to(num_bytes)


def too_large() -> ApiError:
    message = f"The request body is larger than the limit of {settings.MAX_BODY_BYTES} bytes."
    return ApiError("request_too_large", 413, message)
