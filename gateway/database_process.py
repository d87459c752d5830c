"""The database of the hot path, asked by a process beside the web process.

A thread would share the interpreter's lock with the loop, and each statement stop every stream for
some tenths of a millisecond, several at once for ten (bench/LOG.md). A call is a function of a
module with its arguments: both go over a socket pair, pickled, and what it returns or raises comes
back. Every function called here may run twice: what a lost process may or may not have done is
asked of the next.
"""

import asyncio
import os
import pickle  # noqa: TID251 By two processes of ours, over a socket that nobody else has.
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from typing import Any, Protocol, TypeVar

from django.conf import settings
from django.db import OperationalError

Result = TypeVar("Result")

# As multiprocessing.connection frames what it sends: the other end is one.
SIZE = struct.Struct("!i")
MAX_ATTEMPTS = 2
# Each its socket: a write is done by the thread that reads of it, which costs no change of threads.
READS, WRITES = 0, 1
STOP_TIMEOUT_S = 10.0


class Ask(Protocol):
    """function(*args), where the database is."""

    async def __call__(self, function: Callable[..., Result], *args: Any) -> Result: ...


class ProcessLost(Exception):
    """Before it answered."""


class DatabaseProcess:
    """One an event loop, started by the first call, and again when it is lost. stop() it."""

    def __init__(self) -> None:
        self._links: Links | None = None
        self._starting: asyncio.Task[Links] | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def read(self, function: Callable[..., Result], *args: Any) -> Result:
        """function(*args) there, beside others. Raises what it raises; OperationalError if its
        process is lost twice.
        """
        found: Result = await self._ask(READS, function, args)
        return found

    async def write(self, function: Callable[..., Result], *args: Any) -> Result:
        """The same, after what was asked by write() before."""
        found: Result = await self._ask(WRITES, function, args)
        return found

    async def _ask(self, lane: int, function: Callable[..., Any], args: Any) -> Any:
        for _ in range(MAX_ATTEMPTS):
            links = self._links
            if links is None or any(link.is_lost for link in links):
                links = await self._connect()
            try:
                return await links[lane].ask(function, args)
            except ProcessLost:
                continue
        raise OperationalError(f"the database process was lost {MAX_ATTEMPTS} times")

    async def _connect(self) -> "Links":
        """All that call meanwhile share one start."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
            self._starting.add_done_callback(self._started)
        return await asyncio.shield(self._starting)

    def _started(self, task: "asyncio.Task[Links]") -> None:
        self._starting = None
        # Its callers may all be gone when it fails: not an unretrieved error then.
        if not task.cancelled() and task.exception() is None:
            self._links = task.result()

    async def _start(self) -> "Links":
        await self._reap()
        pairs = [socket.socketpair() for _ in (READS, WRITES)]
        with ExitStack() as theirs:
            fds = [theirs.enter_context(pair[1]).fileno() for pair in pairs]
            command = (sys.executable, "-m", "gateway.database_worker", *map(str, fds))
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *command, cwd=settings.ROOT_DIR, env=environment(), pass_fds=fds
                )
            except OSError as error:
                for ours, _ in pairs:
                    ours.close()
                raise OperationalError(f"the database process does not start: {error}") from error
        return await open_link(pairs[READS][0]), await open_link(pairs[WRITES][0])

    async def stop(self) -> None:
        """What was asked is done first."""
        if self._starting is not None:
            await asyncio.wait((self._starting,))
        links, self._links = self._links, None
        # It hangs up on both once both have ended.
        await asyncio.gather(*(link.close() for link in links or ()))
        await self._reap()

    async def _reap(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


Links = tuple["Link", "Link"]


class Link(asyncio.Protocol):
    """Calls out, answers in, in any order: each has its call's number."""

    def __init__(self) -> None:
        self.is_lost = False
        self._transport: asyncio.Transport | None = None
        self._rest = bytearray()
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def ask(self, function: Callable[..., Any], args: Any) -> "asyncio.Future[Any]":
        """What function(*args) returned or raised; ProcessLost."""
        answer = asyncio.get_running_loop().create_future()
        if self.is_lost or self._transport is None:
            answer.set_exception(ProcessLost())
            return answer
        number = next(self._numbers)
        call = pickle.dumps((number, function, args), pickle.HIGHEST_PROTOCOL)
        self._waiting[number] = answer
        self._transport.write(SIZE.pack(len(call)) + call)
        return answer

    def data_received(self, data: bytes) -> None:
        self._rest += data
        at = 0
        while (begin := at + SIZE.size) <= len(self._rest):
            end = begin + SIZE.unpack_from(self._rest, at)[0]
            if end > len(self._rest):
                break
            self._take(*pickle.loads(self._rest[begin:end]))
            at = end
        del self._rest[:at]

    def _take(self, number: int, is_error: bool, value: Any) -> None:
        answer = self._waiting.pop(number)
        if answer.done():
            return
        if is_error:
            answer.set_exception(value)
        else:
            answer.set_result(value)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ProcessLost())
        self._waiting.clear()
        self._ended.set_result(None)

    async def close(self) -> None:
        """The process ends once it has done what it was asked."""
        if self._transport is not None and not self.is_lost:
            self._transport.write_eof()
        await self._ended


async def open_link(ours: socket.socket) -> Link:
    _, link = await asyncio.get_running_loop().create_unix_connection(Link, sock=ours)
    return link


def environment() -> dict[str, str]:
    """Without the folder of a web process's metrics: the other has none."""
    # Not configuration: a child inherits all that this process was given.
    mine = os.environ  # noqa: TID251
    return {name: value for name, value in mine.items() if name != "PROMETHEUS_MULTIPROC_DIR"}
