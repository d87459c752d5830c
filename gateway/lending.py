"""A process's tapes, lent to readers in other processes. far_tapes carries the asks and answers."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal

from django.conf import settings

from gateway.readers import Owner, not_found
from gateway.tapes import NearReader, Tape, Tapes
from tenants.errors import ApiError

# A pull that finds nothing new is answered after so long.
WAIT_S = 2.0
# Longer than a reader waits before it asks again.
DOUBT_S = 10.0


@dataclass(frozen=True)
class Ask:
    """process and call: whose it is, and which; reader: the same for all asks of one."""

    verb: Literal["attach", "pull", "cancel", "leave"]
    process: str
    call: str
    reader: str
    generation: str
    owner: Owner
    after: int


@dataclass(frozen=True)
class Answer:
    """is_over: the last frame is among these. error: an ApiError's fields."""

    call: str = ""
    is_over: bool = False
    error: dict[str, Any] | None = None
    frames: list[bytes] = field(default_factory=list)

    def or_error(self) -> "Answer":
        if self.error is not None:
            raise ApiError(**self.error)
        return self


@dataclass
class Loan:
    """expiry: when nobody asks any more."""

    tape: Tape
    reader: NearReader
    expiry: asyncio.TimerHandle


class Lender:
    """A loan lasts while its reader asks: longer than a client may take nothing, which is how long
    a process may have nothing to ask for.
    """

    def __init__(self, tapes: Tapes) -> None:
        self._tapes = tapes
        self._loans: dict[str, Loan] = {}

    async def answer(self, ask: Ask) -> Answer:
        try:
            return await self._answer(ask)
        except ApiError as error:
            self._end(ask.reader)
            names = ("code", "status", "message", "param")
            return Answer(error={name: getattr(error, name) for name in names})

    async def _answer(self, ask: Ask) -> Answer:
        if ask.verb == "pull":
            return await self._pull(ask)
        if ask.verb == "leave":
            self._end(ask.reader)
            return Answer()
        tape = self._tapes.find(ask.owner, ask.generation)
        if ask.verb == "cancel":
            tape.cancel()
        else:
            # Asked for twice, it takes over from itself.
            reader = tape.attach(ask.after)
            self._end(ask.reader)
            self._loans[ask.reader] = Loan(tape, reader, self._expiry(ask.reader))
        return Answer()

    async def _pull(self, ask: Ask) -> Answer:
        loan = self._loans.get(ask.reader)
        if loan is None:
            raise not_found()
        self._renew(loan, self._expiry(ask.reader))
        try:
            async with asyncio.timeout(WAIT_S):
                frames = await loan.reader.pull(ask.after)
        except TimeoutError:
            return Answer()
        return Answer(is_over=loan.tape.is_end(ask.after + len(frames)), frames=frames)

    def doubt(self, reader: str) -> None:
        """Its process did not hear an answer: it asks again soon, or is dead."""
        if loan := self._loans.get(reader):
            self._renew(loan, self._expiry(reader, DOUBT_S))

    def _expiry(self, reader: str, within_s: float | None = None) -> asyncio.TimerHandle:
        lasts_s = settings.WRITE_TIMEOUT_S + DOUBT_S if within_s is None else within_s
        return asyncio.get_running_loop().call_later(lasts_s, self._end, reader)

    def _renew(self, loan: Loan, expiry: asyncio.TimerHandle) -> None:
        loan.expiry.cancel()
        loan.expiry = expiry

    def _end(self, reader: str) -> None:
        if loan := self._loans.pop(reader, None):
            loan.expiry.cancel()
            loan.reader.leave()
