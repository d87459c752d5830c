"""Lua scripts of the counter store, called by many at once over one connection."""

import asyncio
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import hiredis
import redis.asyncio
from redis import exceptions
from redis.exceptions import ConnectionError, NoScriptError, ResponseError

# A connection that the server closed is noticed by using it: its calls are sent once more.
MAX_ATTEMPTS = 2
NOTHING = object()

Command = tuple[Any, ...]
# Over which connection, and its reply.
Sent = tuple["Wire", "asyncio.Future[Any]"]


class ScriptCalls:
    """Each call is written at once and waits for its reply alone, by no lock, pool or task: a turn
    of a busy loop takes milliseconds, and each of those would cost one.

    A call whose caller left has run, or will; its reply is dropped. One an event loop; close() it.
    """

    def __init__(
        self, client: "redis.asyncio.Redis", scripts: Mapping[str, str], timeout_s: float
    ) -> None:
        """scripts: by name; each is idempotent. timeout_s: of a connection, and of a reply."""
        self._pool: Any = client.connection_pool
        self._scripts = {name: client.register_script(text) for name, text in scripts.items()}
        self._timeout_s = timeout_s
        self._wire: Wire | None = None
        self._connecting: asyncio.Task[Wire] | None = None

    async def close(self) -> None:
        """Disconnect, once nobody waits for a reply; the next call connects again."""
        if self._connecting is not None:
            await asyncio.wait((self._connecting,))
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.drained()
            wire.cut()

    def call(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> Coroutine[Any, Any, Any]:
        """To await: the reply of the script of this name. The call is sent here and now if there is
        a connection, so later ones run after it.

        Raises, when awaited, RedisError or OSError, the store's or the way's to it.
        """
        command = ("EVALSHA", self._scripts[name].sha, len(keys), *keys, *args)
        wire = self._wire
        sent = None if wire is None or wire.is_cut else (wire, wire.ask(command))
        return self._reply(name, command, sent)

    async def _reply(self, name: str, command: Command, sent: "Sent | None") -> Any:
        try:
            return await self._ask(command, sent)
        except NoScriptError:
            # The store was restarted. Nothing of this call has run.
            await self._ask(("SCRIPT", "LOAD", self._scripts[name].script))
            return await self._ask(command)

    async def _ask(self, command: Command, sent: "Sent | None" = None, attempt: int = 1) -> Any:
        if sent is None:
            wire = await self._connected_wire()
            sent = (wire, wire.ask(command))
        wire, reply = sent
        try:
            async with asyncio.timeout(self._timeout_s):
                return await reply
        except TimeoutError as error:
            wire.cut()
            raise exceptions.TimeoutError(f"no reply within {self._timeout_s} s") from error
        except ConnectionError:
            if attempt == MAX_ATTEMPTS:
                raise
            return await self._ask(command, attempt=attempt + 1)

    async def _connected_wire(self) -> "Wire":
        """All that call meanwhile share one attempt."""
        if self._wire is not None and not self._wire.is_cut:
            return self._wire
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._open())
            self._connecting.add_done_callback(self._connected)
        return await asyncio.shield(self._connecting)

    async def _open(self) -> "Wire":
        """The library finds the way, encrypts and logs in; from then on the transport is ours."""
        connection = self._pool.make_connection()
        await connection.connect()
        writer, connection._writer, connection._reader = connection._writer, None, None
        return Wire(writer)

    def _connected(self, task: "asyncio.Task[Wire]") -> None:
        self._connecting = None
        # Its callers may all be gone when it fails: not an unretrieved error then.
        if not task.cancelled() and task.exception() is None:
            self._wire = task.result()


class Wire(asyncio.Protocol):
    """One connection: commands out, and replies in, in the same order."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        # Kept: a writer that is forgotten closes its transport.
        self._writer = writer
        self._reader = hiredis.Reader(
            encoding="utf-8", replyError=reply_error, notEnoughData=NOTHING
        )
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self.is_cut = writer.transport.is_closing()
        writer.transport.set_protocol(self)

    def ask(self, command: Command) -> "asyncio.Future[Any]":
        """Its reply; ConnectionError if the connection is lost before it."""
        reply = asyncio.get_running_loop().create_future()
        if self.is_cut:
            reply.set_exception(ConnectionError("the connection was lost"))
            return reply
        self._waiting.append(reply)
        self._writer.transport.write(hiredis.pack_command(command))
        return reply

    def cut(self) -> None:
        """Late replies may be on their way: nobody may read them as another's."""
        self.is_cut = True
        self._writer.transport.abort()

    async def drained(self) -> None:
        if self._waiting:
            await asyncio.wait(self._waiting)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not NOTHING:
            # What the server says unasked is no reply.
            if isinstance(reply, hiredis.PushNotification):
                continue
            answer(self._waiting.popleft(), reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_cut = True
        while self._waiting:
            answer(self._waiting.popleft(), ConnectionError(f"the connection was lost: {exc}"))


def reply_error(message: str) -> ResponseError:
    kind = NoScriptError if message.startswith("NOSCRIPT") else ResponseError
    return kind(message)


def answer(waiting: "asyncio.Future[Any]", reply: Any) -> None:
    if waiting.done():
        return
    if isinstance(reply, Exception):
        waiting.set_exception(reply)
    else:
        waiting.set_result(reply)
