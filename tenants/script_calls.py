"""Lua scripts of the counter store, called by many at once over few round trips."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from redis.exceptions import ConnectionError, NoScriptError, RedisError, ResponseError

MAX_CALLS = 256
# A connection that the server closed is noticed by using it: its calls are sent once more.
MAX_ATTEMPTS = 2


@dataclass(frozen=True)
class Call:
    script: str
    keys: Sequence[str]
    args: Sequence[Any]
    reply: "asyncio.Future[Any]"


class ScriptCalls:
    """What is called while a trip is under way goes together with the next: a call of many costs
    a quarter of one by itself.

    One connection, used by one trip at a time: the client's pool, locks and pipelines would cost
    as much as the trip. A call whose caller left goes on, and its reply is dropped. One an event
    loop; close() it.
    """

    def __init__(self, client: "redis.asyncio.Redis", scripts: Mapping[str, str]) -> None:
        """scripts: by name; each is idempotent."""
        pool: Any = client.connection_pool
        self._connection: Any = pool.make_connection()
        self._scripts = {name: client.register_script(text) for name, text in scripts.items()}
        self._waiting: list[Call] = []
        self._travelling: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Wait for the trips under way, then disconnect; the next call connects again."""
        if self._travelling is not None:
            await self._travelling
        await self._connection.disconnect()

    async def call(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """The reply of the script of this name.

        Raises RedisError or OSError, the store's or the way's to it.
        """
        reply = asyncio.get_running_loop().create_future()
        self._waiting.append(Call(script, keys, args, reply))
        if self._travelling is None:
            self._travelling = asyncio.create_task(self._travel())
        return await reply

    async def _travel(self) -> None:
        while self._waiting:
            calls, self._waiting = self._waiting[:MAX_CALLS], self._waiting[MAX_CALLS:]
            try:
                replies = await self._trip(calls)
            except Exception as error:  # noqa: BLE001 Each caller raises it.
                replies = [error] * len(calls)
            for call, reply in zip(calls, replies, strict=True):
                answer(call, reply)
        self._travelling = None

    async def _trip(self, calls: Sequence[Call]) -> list[Any]:
        replies = await self._send([self._command(call) for call in calls])
        missing = [n for n, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if missing:
            # The store was restarted. Nothing of these calls has run.
            names = {calls[number].script for number in missing}
            loads = [("SCRIPT LOAD", self._scripts[name].script) for name in names]
            again = loads + [self._command(calls[number]) for number in missing]
            late = (await self._send(again))[len(loads) :]
            for number, reply in zip(missing, late, strict=True):
                replies[number] = reply
        return replies

    def _command(self, call: Call) -> tuple[Any, ...]:
        sha = self._scripts[call.script].sha
        return ("EVALSHA", sha, len(call.keys), *call.keys, *call.args)

    async def _send(self, commands: Sequence[tuple[Any, ...]], attempt: int = 1) -> list[Any]:
        connection = self._connection
        try:
            await connection.connect()
            packed = connection.pack_commands(commands)
            await connection.send_packed_command(packed, check_health=False)
            return [await self._read() for _ in commands]
        except (RedisError, OSError) as error:
            # Replies may be on their way still: nobody may read them as another's.
            await connection.disconnect(nowait=True)
            if attempt == MAX_ATTEMPTS or not isinstance(error, ConnectionError):
                raise
            return await self._send(commands, attempt + 1)

    async def _read(self) -> Any:
        try:
            return await self._connection.read_response()
        except ResponseError as error:
            return error


def answer(call: Call, reply: Any) -> None:
    if call.reply.done():
        return
    if isinstance(reply, Exception):
        call.reply.set_exception(reply)
    else:
        call.reply.set_result(reply)
