"""Lua scripts of the counter store, called by many at once over few round trips."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from redis.exceptions import NoScriptError

MAX_CALLS = 256


@dataclass(frozen=True)
class Call:
    script: str
    keys: Sequence[str]
    args: Sequence[Any]
    reply: "asyncio.Future[Any]"


class ScriptCalls:
    """What is called while a trip is under way goes together with the next: a call costs the
    process a quarter of a trip of its own.

    A call whose caller left goes on, and its reply is dropped. One an event loop.
    """

    def __init__(self, client: "redis.asyncio.Redis", scripts: Mapping[str, str]) -> None:
        """scripts: by name."""
        self._client = client
        self._scripts = {name: client.register_script(text) for name, text in scripts.items()}
        self._waiting: list[Call] = []
        self._travelling: asyncio.Task[None] | None = None

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
        replies = await self._send(calls)
        missing = [n for n, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if missing:
            # The store was restarted. Nothing of these calls has run.
            for name in {calls[number].script for number in missing}:
                await self._client.script_load(self._scripts[name].script)
            again = await self._send([calls[number] for number in missing])
            for number, reply in zip(missing, again, strict=True):
                replies[number] = reply
        return replies

    async def _send(self, calls: Sequence[Call]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipeline:
            for call in calls:
                sha = self._scripts[call.script].sha
                pipeline.evalsha(sha, len(call.keys), *call.keys, *call.args)
            return await pipeline.execute(raise_on_error=False)


def answer(call: Call, reply: Any) -> None:
    if call.reply.done():
        return
    if isinstance(reply, Exception):
        call.reply.set_exception(reply)
    else:
        call.reply.set_result(reply)
