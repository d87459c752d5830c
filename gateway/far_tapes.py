"""Generations that another web process holds, read over the store's publish and subscribe.

The reader pulls: it names the last frame that arrived, and gets those behind it once there are any.
So nothing is on its way that the client has no room for, and what is lost is asked for again. A
process that is gone listens no more, and the store says so.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Literal

import orjson
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.lending import WAIT_S, Answer, Ask, Lender
from gateway.openai.errors import unavailable
from gateway.readers import Owner, Reader, holder_of, not_found
from gateway.subscription import messages
from gateway.tapes import Tapes
from tenants.errors import ApiError

log = logging.getLogger(__name__)

# A holder that lost the store for a moment, or the store itself, is back within them.
MAX_ASKS = 5
RETRY_INTERVAL_S = 0.5
ANSWER_TIMEOUT_S = WAIT_S + 1.0

Spawn = Callable[[Coroutine[Any, Any, None]], object]


def channel_of(process: str) -> str:
    return f"grafthouse.web.{process}"


class FarTapes:
    """Those of all other processes; and to these, ours. spawn: runs work that nobody awaits."""

    def __init__(self, tapes: Tapes, store: Redis, spawn: Spawn) -> None:
        self._tapes, self._store, self._spawn = tapes, store, spawn
        self._lender = Lender(tapes)
        self._waiting: dict[str, asyncio.Future[Answer]] = {}

    async def follow(self) -> None:
        """Take what others ask and answer. Raises RedisError when the store is lost."""
        async with aclosing(messages(channel_of(self._tapes.process))) as found:
            async for raw in found:
                if raw is not None:
                    self._take(raw)

    def _take(self, raw: bytes) -> None:
        head, *frames = raw.split(b"\n")
        fields = orjson.loads(head)
        if "verb" in fields:
            owner = Owner(**fields.pop("owner"))
            self._spawn(self._serve(Ask(**fields, owner=owner)))
        elif (waiting := self._waiting.get(fields["call"])) and not waiting.done():
            waiting.set_result(Answer(**fields, frames=frames))

    async def _serve(self, ask: Ask) -> None:
        answer = await self._lender.answer(ask)
        if not ask.call:
            return
        head = orjson.dumps({"call": ask.call, "is_over": answer.is_over, "error": answer.error})
        try:
            raw = b"\n".join([head, *answer.frames])
            num_heard = await self._store.publish(channel_of(ask.process), raw)
        except (RedisError, OSError) as error:
            log.warning("an answer to process %s was lost: %s", ask.process, error)
            return
        if not num_heard:
            self._lender.doubt(ask.reader)

    async def attach(self, owner: Owner, name: str, after: int) -> Reader:
        """A reader of a generation that any process holds. ApiError 404 for one that is absent,
        over, another's, or was of a process that is dead; 409 for frames that are not kept.
        """
        if holder_of(name) == self._tapes.process:
            return self._tapes.find(owner, name).attach(after)
        reader = FarReader(self, owner, name)
        await reader.attach(after)
        return reader

    def first_ask(self, owner: Owner, generation: str) -> Ask:
        """Of a new reader; its others differ in verb, call and number. No call: no answer."""
        reader = secrets.token_hex(16)
        return Ask("attach", self._tapes.process, "", reader, generation, owner, 0)

    async def ask(self, ask: Ask) -> Answer:
        """Raises ApiError: what the holder says, 404 where there is none, 503 without a store."""
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[ask.call] = waiting
        try:
            for _ in range(MAX_ASKS):
                problem = await self._send(ask)
                timeout_s = RETRY_INTERVAL_S if problem else ANSWER_TIMEOUT_S
                await asyncio.wait({waiting}, timeout=timeout_s)
                if waiting.done():
                    return waiting.result().or_error()
            raise problem or not_found()
        finally:
            del self._waiting[ask.call]

    async def _send(self, ask: Ask) -> ApiError | None:
        channel = channel_of(holder_of(ask.generation))
        try:
            num_heard = await self._store.publish(channel, orjson.dumps(ask))
        except (RedisError, OSError) as error:
            log.warning("a generation of another process cannot be asked for: %s", error)
            return unavailable("overloaded", "Its process cannot be reached now. Resume again.")
        return None if num_heard else not_found()

    def tell(self, ask: Ask) -> None:
        self._spawn(self._tell(ask))

    async def _tell(self, ask: Ask) -> None:
        await self._send(ask)


class FarReader:
    """In the process that has the socket, of a tape that another holds."""

    is_resumable = True

    def __init__(self, tapes: FarTapes, owner: Owner, name: str) -> None:
        self.name = name
        self._tapes = tapes
        self._first = tapes.first_ask(owner, name)
        self._is_over = False

    async def attach(self, after: int) -> None:
        try:
            await self._ask("attach", after)
        except asyncio.CancelledError:
            self.leave()
            raise

    async def pull(self, after: int) -> list[bytes]:
        while not self._is_over:
            answer = await self._ask("pull", after)
            self._is_over = answer.is_over
            if answer.frames:
                return answer.frames
        return []

    def cancel(self) -> None:
        self._tapes.tell(replace(self._first, verb="cancel"))

    def leave(self) -> None:
        self._tapes.tell(replace(self._first, verb="leave"))

    async def _ask(self, verb: Literal["attach", "pull"], after: int) -> Answer:
        call = secrets.token_hex(8)
        return await self._tapes.ask(replace(self._first, verb=verb, call=call, after=after))
