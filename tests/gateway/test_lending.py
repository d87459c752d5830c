"""Loans of a tape to readers that stop asking."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway import lending
from gateway.lending import Ask, Lender
from gateway.readers import Owner
from gateway.tapes import Tape, Tapes

OWNER = Owner(1, 1, None)


@pytest.fixture
def tapes(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Tapes:
    settings.RESUME_WINDOW_S = 0.2
    settings.WRITE_TIMEOUT_S = 0.2
    settings.MAX_RESUME_BYTES = settings.MAX_RESUME_TOTAL_BYTES = 10**6
    monkeypatch.setattr(lending, "DOUBT_S", 0.1)
    return Tapes()


async def write_for_ever(tape: Tape) -> None:
    while True:
        await tape.write("chunk", "data", {})
        await asyncio.sleep(0.01)


async def borrowed(tapes: Tapes) -> tuple[Lender, Tape, Ask]:
    """A tape that is written, with one reader far away."""
    tape = tapes.make(OWNER, is_resumable=True)
    tape.start(write_for_ever(tape))
    lender = Lender(tapes)
    ask = Ask("attach", "there", "1", "reader", tape.name, OWNER, 0)
    assert (await lender.answer(ask)).error is None
    return lender, tape, replace(ask, verb="pull")


async def seconds_until_end(tape: Tape) -> float:
    begin = asyncio.get_running_loop().time()
    while not tape.has_ended:
        await asyncio.sleep(0.01)
    return asyncio.get_running_loop().time() - begin


async def test_it_lasts_while_it_is_asked_for(tapes: Tapes) -> None:
    lender, tape, ask = await borrowed(tapes)
    after = 0
    for _ in range(60):
        after += len((await lender.answer(replace(ask, after=after))).frames)
        await asyncio.sleep(0.01)
    assert after > 50 and not tape.has_ended
    await tapes.close()


async def test_nobody_asks_any_more(tapes: Tapes) -> None:
    """A client may take nothing for WRITE_TIMEOUT_S; then the window begins."""
    lender, tape, ask = await borrowed(tapes)
    await lender.answer(ask)
    assert 0.4 < await seconds_until_end(tape) < 0.8
    await tapes.close()
    assert (await lender.answer(ask)).error is not None


async def test_an_answer_was_not_heard(tapes: Tapes) -> None:
    lender, tape, ask = await borrowed(tapes)
    await lender.answer(ask)
    lender.doubt(ask.reader)
    assert 0.2 < await seconds_until_end(tape) < 0.5
    await tapes.close()


async def test_what_is_asked_twice_is_answered_twice(tapes: Tapes) -> None:
    """The first answer was lost: none of its frames is."""
    lender, _, ask = await borrowed(tapes)
    await asyncio.sleep(0.1)
    first, second = [(await lender.answer(ask)).frames for _ in range(2)]
    assert first and second[: len(first)] == first
    assert (await lender.answer(replace(ask, verb="attach"))).error is None
    assert (await lender.answer(ask)).frames[: len(first)] == first
    await tapes.close()
