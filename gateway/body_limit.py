"""Bodies that go to Django are bounded on their way: it spools one whole before any view runs.

Answers are in the error shape of where they were sent. The plan's own, smaller limit is the view's
to tell.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import orjson
from django.conf import settings

from gateway.openai.errors import error_body
from gateway.openai.http import LINGER_S, Receive, Scope, Send
from tenants.errors import ApiError

# Boundaries, part headers and small fields around the files of an upload.
MULTIPART_OVERHEAD_BYTES = 64 * 1024
PART_PATH = re.compile(r"/uploads/[^/]+/parts/?\Z")

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class CountedBody:
    """A receive() that ends as if the client had gone once more than max_bytes have come, or too
    few in the time that passed.

    Django drops what it has spooled then, and answers nothing.
    """

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self.is_late = False
        self._receive = receive
        self._num_left = max_bytes
        # None: the body has come; what is asked for then is whether the client has gone.
        self._deadline: float | None = asyncio.get_running_loop().time() + settings.BODY_TIMEOUT_S

    @property
    def is_exceeded(self) -> bool:
        return self._num_left < 0

    async def receive(self) -> MutableMapping[str, Any]:
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            self.is_late = True
            return {"type": "http.disconnect"}
        self._count(message)
        return {"type": "http.disconnect"} if self.is_exceeded else message

    def _count(self, message: MutableMapping[str, Any]) -> None:
        num_bytes = len(message.get("body", b""))
        self._num_left -= num_bytes
        if not message.get("more_body", False):
            self._deadline = None
        elif self._deadline is not None:
            self._deadline += num_bytes / settings.MIN_UPLOAD_BYTES_PER_S


@dataclass(frozen=True)
class Bound:
    code: str
    what: str
    max_bytes: int
    overhead_bytes: int = 0


def bound_of(scope: Scope) -> Bound:
    kind = dict(scope["headers"]).get(b"content-type", b"").lower()
    if not kind.startswith(b"multipart/form-data"):
        return Bound("too_large", "request body", settings.MAX_BODY_BYTES)
    if PART_PATH.search(scope["path"]):
        return Bound("part_too_large", "part", settings.MAX_PART_BYTES, MULTIPART_OVERHEAD_BYTES)
    limit = settings.MAX_UPLOAD_BYTES
    return Bound("upload_too_large", "upload", limit, MULTIPART_OVERHEAD_BYTES)


async def bounded(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """app's answer, or 413: at once for a length that is announced, else when it is reached; 408
    when it comes too slowly.
    """
    headers, bound = dict(scope["headers"]), bound_of(scope)
    is_openai = scope["path"].startswith("/v1/")
    max_bytes = bound.max_bytes + bound.overhead_bytes
    if int(headers.get(b"content-length", b"0")) <= max_bytes:
        body = CountedBody(receive, max_bytes)
        await app(scope, body.receive, send)
        if body.is_late:
            await refuse(too_slow(), is_openai, send)
            await send({"type": "http.response.body", "body": b""})
        if body.is_late or not body.is_exceeded:
            return
    await refuse(too_large(bound), is_openai, send)
    # One that asks before it sends waits for this answer.
    if b"expect" not in headers:
        await linger(receive)
    await send({"type": "http.response.body", "body": b""})


def too_large(bound: Bound) -> ApiError:
    return ApiError(bound.code, 413, f"The {bound.what} is larger than {bound.max_bytes} bytes.")


def too_slow() -> ApiError:
    message = (
        f"The body came too slowly: expected {settings.MIN_UPLOAD_BYTES_PER_S} bytes/s, "
        f"after the first {settings.BODY_TIMEOUT_S} s."
    )
    return ApiError("request_timeout", 408, message)


async def refuse(error: ApiError, is_openai: bool, send: Send) -> None:
    answer = error_body(error)
    if not is_openai:
        answer = orjson.dumps(
            {"error": {"code": error.code, "message": error.message, "details": []}}
        )
    head = {
        "content-type": "application/json",
        "content-length": str(len(answer)),
        # What is left unread must not be taken for the next request.
        "connection": "close",
    }
    raw = [(name.encode(), value.encode()) for name, value in head.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": answer, "more_body": True})


async def linger(receive: Receive) -> None:
    """Read on for a moment: a client that is cut off while it sends may never see the answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while (await receive()).get("more_body", False):
                pass
