"""Bodies that go to Django are bounded on their way: it spools one whole before any view runs.

Answers are in /api's error shape. The plan's own, smaller limit is the view's to tell.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson
from django.conf import settings

from gateway.openai.http import LINGER_S, Receive, Scope, Send

# Boundaries, part headers and small fields around the files of an upload.
MULTIPART_OVERHEAD_BYTES = 64 * 1024

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class CountedBody:
    """A receive() that ends as if the client had gone once more than max_bytes have come.

    Django drops what it has spooled then, and answers nothing.
    """

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive = receive
        self._num_left = max_bytes

    @property
    def is_exceeded(self) -> bool:
        return self._num_left < 0

    async def receive(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        self._num_left -= len(message.get("body", b""))
        return {"type": "http.disconnect"} if self.is_exceeded else message


async def bounded(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """app's answer, or 413: at once for a length that is announced, else when it is reached."""
    headers = dict(scope["headers"])
    is_upload = headers.get(b"content-type", b"").lower().startswith(b"multipart/form-data")
    max_bytes = settings.MAX_BODY_BYTES
    if is_upload:
        max_bytes = settings.MAX_UPLOAD_BYTES + MULTIPART_OVERHEAD_BYTES
    if int(headers.get(b"content-length", b"0")) <= max_bytes:
        body = CountedBody(receive, max_bytes)
        await app(scope, body.receive, send)
        if not body.is_exceeded:
            return
    await refuse(is_upload, send)
    # One that asks before it sends waits for this answer.
    if b"expect" not in headers:
        await linger(receive)
    await send({"type": "http.response.body", "body": b""})


async def refuse(is_upload: bool, send: Send) -> None:
    limit = settings.MAX_UPLOAD_BYTES if is_upload else settings.MAX_BODY_BYTES
    code, what = ("upload_too_large", "upload") if is_upload else ("too_large", "request body")
    message = f"The {what} is larger than {limit} bytes."
    answer = orjson.dumps({"error": {"code": code, "message": message, "details": []}})
    head = {
        "content-type": "application/json",
        "content-length": str(len(answer)),
        # What is left unread must not be taken for the next request.
        "connection": "close",
    }
    raw = [(name.encode(), value.encode()) for name, value in head.items()]
    await send({"type": "http.response.start", "status": 413, "headers": raw})
    await send({"type": "http.response.body", "body": answer, "more_body": True})


async def linger(receive: Receive) -> None:
    """Read on for a moment: a client that is cut off while it sends may never see the answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while (await receive()).get("more_body", False):
                pass
