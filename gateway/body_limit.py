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

from gateway.bodies import HeldBody
from gateway.openai.errors import error_body
from gateway.openai.http import LINGER_S, Receive, Scope, Send
from gateway.runtime import runtime_of
from tenants.errors import ApiError

# Boundaries, part headers and small fields around the files of an upload.
MULTIPART_OVERHEAD_BYTES = 64 * 1024
TOO_LATE = 408
PART_PATH = re.compile(r"/uploads/[^/]+/parts/?\Z")

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class CountedBody:
    """A receive() that ends as if the client had gone once more than the bound has come, too little
    in the time that passed, or more than there is room for: error is what to answer then.

    Django drops what it has spooled, and answers nothing.
    """

    def __init__(self, receive: Receive, bound: "Bound", held: HeldBody) -> None:
        self.error: ApiError | None = None
        self._receive = receive
        self._bound = bound
        self._held = held
        self._num_bytes = 0
        # None: the body has come; what is asked for then is whether the client has gone.
        self._deadline: float | None = asyncio.get_running_loop().time() + settings.BODY_TIMEOUT_S

    def announce(self, num_bytes: int) -> None:
        try:
            self._bound.check(num_bytes, self._held)
        except ApiError as error:
            self.error = error

    async def receive(self) -> MutableMapping[str, Any]:
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
            self._count(message)
        except TimeoutError:
            self.error = too_slow()
        except ApiError as error:
            self.error = error
        return {"type": "http.disconnect"} if self.error else message

    def _count(self, message: MutableMapping[str, Any]) -> None:
        num_bytes = len(message.get("body", b""))
        self._num_bytes += num_bytes
        self._bound.check(self._num_bytes, self._held)
        if not message.get("more_body", False):
            self._deadline = None
        elif self._deadline is not None:
            self._deadline += num_bytes / settings.MIN_UPLOAD_BYTES_PER_S


@dataclass(frozen=True)
class Bound:
    code: str
    what: str
    max_bytes: int
    # Of it in memory; the rest is on disk.
    max_held_bytes: int
    overhead_bytes: int = 0

    def check(self, num_bytes: int, held: HeldBody) -> None:
        """Raises ApiError 413, or 503 when bodies have no room left."""
        if num_bytes > self.max_bytes + self.overhead_bytes:
            raise too_large(self)
        held.grow_to(min(num_bytes, self.max_held_bytes))


def bound_of(scope: Scope) -> Bound:
    kind = dict(scope["headers"]).get(b"content-type", b"").lower()
    if not kind.startswith(b"multipart/form-data"):
        limit = settings.MAX_BODY_BYTES
        return Bound("too_large", "request body", limit, max_held_bytes=limit)
    spool = settings.FILE_UPLOAD_MAX_MEMORY_SIZE
    if PART_PATH.search(scope["path"]):
        limit = settings.MAX_PART_BYTES
        return Bound("part_too_large", "part", limit, spool, MULTIPART_OVERHEAD_BYTES)
    limit = settings.MAX_UPLOAD_BYTES
    return Bound("upload_too_large", "upload", limit, spool, MULTIPART_OVERHEAD_BYTES)


async def bounded(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """app's answer, or what stands against the body: 413 or 503, at once by the length that is
    announced, else as it comes; 408 when it comes too slowly.
    """
    headers, bound = dict(scope["headers"]), bound_of(scope)
    with runtime_of(scope).bodies.held() as held:
        body = CountedBody(receive, bound, held)
        body.announce(int(headers.get(b"content-length", b"0")))
        if body.error is None:
            await app(scope, body.receive, send)
    if body.error is None:
        return
    await refuse(body.error, scope["path"].startswith("/v1/"), send)
    # One that is late sends nothing; one that asks before it sends waits for this answer.
    if body.error.status != TOO_LATE and b"expect" not in headers:
        await linger(receive)
    await send({"type": "http.response.body", "body": b""})


def too_large(bound: Bound) -> ApiError:
    return ApiError(bound.code, 413, f"The {bound.what} is larger than {bound.max_bytes} bytes.")


def too_slow() -> ApiError:
    message = (
        f"The body came too slowly: expected {settings.MIN_UPLOAD_BYTES_PER_S} bytes/s, "
        f"after the first {settings.BODY_TIMEOUT_S} s."
    )
    return ApiError("request_timeout", TOO_LATE, message)


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
    raw = [(name.encode(), value.encode()) for name, value in (error.headers | head).items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": answer, "more_body": True})


async def linger(receive: Receive) -> None:
    """Read on for a moment: a client that is cut off while it sends may never see the answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while (await receive()).get("more_body", False):
                pass
