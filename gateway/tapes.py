"""A WebSocket's generations, each on a tape: its frames numbered from 1, so that a client whose
socket dropped reads on where it was.

A generation is a task of its own that writes its tape; a socket reads it, of this process or, over
far_tapes, of another. Frames that were read stay for a while if the client asked for that
(`"resumable": true`). Without a reader such a generation goes on for RESUME_WINDOW_S, and for as
many bytes as the tape holds; then it is cancelled, and settled as ever.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Coroutine
from itertools import islice
from typing import Any

import orjson
from django.conf import settings

from gateway.openai.errors import error_object, internal_error
from gateway.openai.http import ClientGone
from gateway.readers import Owner, not_found
from tenants.errors import ApiError

log = logging.getLogger(__name__)

# How far a generation is ahead of its reader before it waits.
MAX_AHEAD_BYTES = 64 * 2**10
# What a reader takes at once, and a frame more.
MAX_PULL_BYTES = 16 * 2**10
# What Python adds to a frame in memory.
OBJECT_BYTES = 48


def frame_of(kind: str, seq: int, field: str, value: dict[str, Any]) -> bytes:
    """Less its brace and its id, which the reader chose. A copy: what orjson returns still has the
    kilobyte under it that it was written into.
    """
    return orjson.dumps({"type": kind, "seq": seq, field: value})[1:]


def as_text(name: str, frame: bytes) -> str:
    return '{"id":' + orjson.dumps(name).decode() + "," + frame.decode()


def cancelled() -> ApiError:
    return ApiError("cancelled", 499, "The generation was cancelled; what it produced is billed.")


def reason_of(writer: asyncio.Task[None]) -> ApiError:
    """Why it ended before its last frame."""
    error = None if writer.cancelled() else writer.exception()
    if error is None or isinstance(error, ClientGone):
        return cancelled()
    if isinstance(error, ApiError):
        return error
    log.error("a generation on a socket failed", exc_info=error)
    return internal_error()


def size_of(frame: bytes) -> int:
    return len(frame) + OBJECT_BYTES


class NearReader:
    """In the process that holds the tape."""

    def __init__(self, tape: "Tape") -> None:
        self.name, self.is_resumable = tape.name, tape.is_resumable
        self._tape = tape

    async def pull(self, after: int) -> list[bytes]:
        return await self._tape.pull(self, after)

    def cancel(self) -> None:
        self._tape.cancel()

    def leave(self) -> None:
        self._tape.leave(self)


class Tape:
    """One writer, one reader at a time; a second reader takes over from the first."""

    def __init__(self, tapes: "Tapes", owner: Owner, is_resumable: bool) -> None:
        self.name = f"{tapes.process}-{secrets.token_hex(16)}"
        self.owner = owner
        self.is_resumable = is_resumable
        self.has_ended = False
        self._tapes = tapes
        self._task: asyncio.Task[None] | None = None
        # The last of them has the number _last.
        self._frames: deque[bytes] = deque()
        self._num_bytes = self._num_unread_bytes = 0
        self._last = self._read = 0
        self._reader: NearReader | None = None
        self._grown, self._moved = asyncio.Event(), asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None

    def start(self, writing: Coroutine[Any, Any, None]) -> None:
        """Run its writer; how that ends is the last frame, where it wrote none itself."""
        self._task = self._tapes.start(writing)
        self._task.add_done_callback(self._close)

    def _close(self, writer: asyncio.Task[None]) -> None:
        if not self.has_ended:
            self.end("error", "error", error_object(reason_of(writer)))

    async def write(self, kind: str, field: str, value: dict[str, Any]) -> None:
        """Waits while the reader is behind. ClientGone: nobody will read it."""
        self._append(kind, field, value)
        while self._reader is not None and self._num_unread_bytes > MAX_AHEAD_BYTES:
            self._moved.clear()
            await self._moved.wait()
        is_full = self._num_unread_bytes > settings.MAX_RESUME_BYTES or self._tapes.is_full()
        if self._reader is None and (is_full or not self.is_resumable):
            raise ClientGone

    def end(self, kind: str, field: str, value: dict[str, Any]) -> None:
        """The last frame."""
        self._append(kind, field, value)
        self.has_ended = True
        self._expire_later()

    def _append(self, kind: str, field: str, value: dict[str, Any]) -> None:
        self._last += 1
        frame = frame_of(kind, self._last, field, value)
        self._frames.append(frame)
        self._num_unread_bytes += size_of(frame)
        self._count(size_of(frame))
        self._grown.set()
        if self._tapes.is_full():
            self._tapes.make_room()
        self._forget_read()

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._tapes.num_bytes += num_bytes

    def _forget_read(self) -> None:
        """Of what was read, as much stays as may be read again."""
        limit = settings.MAX_RESUME_BYTES if self.is_resumable else 0
        while self._num_bytes > self._num_unread_bytes and (
            self._num_bytes > limit or self._tapes.is_full()
        ):
            self._count(-size_of(self._frames.popleft()))

    def attach(self, after: int) -> NearReader:
        """A new reader, of the frames behind that number.

        Raises ApiError 409 for a number that was not sent yet, or is not kept any more.
        """
        gone = self._last - len(self._frames)
        if not gone <= after <= self._last:
            message = f"after: expected {gone} to {self._last}, got {after}."
            raise ApiError("frames_not_kept", 409, message, param="after")
        self._stop_expiry()
        self._reader, self._read = NearReader(self), after
        unread = islice(self._frames, after - gone, None)
        self._num_unread_bytes = sum(size_of(frame) for frame in unread)
        # Whoever read until now learns it.
        self._grown.set()
        return self._reader

    async def pull(self, reader: NearReader, after: int) -> list[bytes]:
        """As a reader's own."""
        if self._reader is reader:
            self._advance(after)
        while self._reader is reader and self._read == self._last and not self.has_ended:
            self._grown.clear()
            await self._grown.wait()
        if self._reader is not reader:
            raise ApiError("taken_over", 409, "Another socket reads this generation now.")
        return self._next()

    def _advance(self, after: int) -> None:
        # Nothing that is unread is ever dropped, and the end of the deque is near.
        for place in range(self._read - self._last, after - self._last):
            self._num_unread_bytes -= size_of(self._frames[place])
        self._read = max(self._read, after)
        self._moved.set()
        self._forget_read()

    def is_end(self, number: int) -> bool:
        return self.has_ended and number == self._last

    def _next(self) -> list[bytes]:
        found: list[bytes] = []
        num_bytes = 0
        for place in range(self._read - self._last, 0):
            found.append(self._frames[place])
            num_bytes += size_of(found[-1])
            if num_bytes > MAX_PULL_BYTES:
                break
        return found

    def leave(self, reader: NearReader) -> None:
        if self._reader is not reader:
            return
        self._reader = None
        self._moved.set()
        if not self.has_ended and not self.is_resumable:
            self.cancel()
        else:
            self._expire_later()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _stop_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()

    def _expire_later(self) -> None:
        self._stop_expiry()
        loop = asyncio.get_running_loop()
        # The last frame may have been lost on its way: it stays as long as others do.
        window_s = settings.RESUME_WINDOW_S if self.is_resumable else 0
        self._expiry = loop.call_later(window_s, self._expire)

    def _expire(self) -> None:
        if self._reader is not None:
            # Of an ended one that is still read to its end.
            return
        self.cancel()
        self.forget()

    def is_over(self) -> bool:
        return self.has_ended and self._reader is None

    def forget(self) -> None:
        self._stop_expiry()
        self._tapes.remove(self)
        self._tapes.num_bytes -= self._num_bytes
        self._num_bytes = 0
        self._frames.clear()


class Tapes:
    """Those of one web process. process: begins the names of its generations."""

    def __init__(self) -> None:
        self.process = secrets.token_hex(4)
        self.num_bytes = 0
        self._tapes: dict[str, Tape] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def is_full(self) -> bool:
        return self.num_bytes > settings.MAX_RESUME_TOTAL_BYTES

    def make(self, owner: Owner, is_resumable: bool) -> Tape:
        tape = Tape(self, owner, is_resumable)
        self._tapes[tape.name] = tape
        return tape

    def start(self, writing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(writing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def find(self, owner: Owner, name: str) -> Tape:
        """Raises ApiError 404."""
        tape = self._tapes.get(name)
        if tape is None or tape.owner != owner or not tape.is_resumable:
            raise not_found()
        return tape

    def make_room(self) -> None:
        """Forget what has ended and is read by nobody."""
        for tape in [one for one in self._tapes.values() if one.is_over()]:
            tape.forget()

    def remove(self, tape: Tape) -> None:
        self._tapes.pop(tape.name, None)

    async def close(self) -> None:
        """Cancel what runs and wait for its end. It can still be read by who does so now."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.make_room()
