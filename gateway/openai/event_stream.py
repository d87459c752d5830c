"""An answer as server-sent events: its head, its frames, its end, and comments in between."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.openai.errors import error_object, internal_error, unavailable
from gateway.openai.http import Request
from gateway.openai.relay import DONE_FRAME, KEEP_ALIVE_FRAME, sse
from tenants.errors import ApiError

log = logging.getLogger(__name__)

KEEP_ALIVE_INTERVAL_S = 10.0
CUT = "This server stops before your answer ends. What was produced is billed. Ask again."
STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    # A proxy that buffers would turn a stream into one late answer.
    "x-accel-buffering": "no",
}


class EventStream:
    """The head goes out with the first frame, so that every refusal before it is a plain JSON
    error. is_admitted: comments may be sent, which begin the answer too.
    """

    def __init__(self, request: Request) -> None:
        self.is_admitted = False
        self._request = request
        self._written_at = time.monotonic()
        self._writing: asyncio.Task[None] | None = None
        self._timer = self._look_in(KEEP_ALIVE_INTERVAL_S)

    async def write(self, frame: bytes) -> None:
        if not self._request.status:
            await self._request.start(200, STREAM_HEADERS)
        await self._request.write(frame)
        self._written_at = time.monotonic()

    @asynccontextmanager
    async def ended(self) -> AsyncIterator[None]:
        """Ends the stream after the block; once it has begun, what the block raises is its last
        frame.
        """
        try:
            yield
        except ApiError as error:
            await self._write_error(error, error)
        except asyncio.CancelledError as error:
            if self._request.has_left:
                raise
            await self._write_error(unavailable("server_stopping", CUT), error)
            await self._request.write(DONE_FRAME, more=False)
            raise
        except Exception as error:
            await self._write_error(internal_error(), error)
            log.exception("%s broke in its stream", self._request.request_id)
        finally:
            self._stop_comments()
        await self._request.write(DONE_FRAME, more=False)

    async def _write_error(self, error: ApiError, raised: BaseException) -> None:
        """Raises what was raised if the stream has not begun."""
        if not self._request.status:
            raise raised
        await self.write(sse({"error": error_object(error)}))

    def _stop_comments(self) -> None:
        self._timer.cancel()
        if self._writing is not None:
            self._writing.cancel()

    def _look_in(self, delay_s: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, self._keep_alive)

    def _keep_alive(self) -> None:
        """A long prefill must not look like a dead connection to the proxies on the way."""
        left_s = self._written_at + KEEP_ALIVE_INTERVAL_S - time.monotonic()
        if self.is_admitted and left_s <= 0:
            self._writing = asyncio.create_task(self.write(KEEP_ALIVE_FRAME))
            left_s = KEEP_ALIVE_INTERVAL_S
        self._timer = self._look_in(max(0.1, left_s))
