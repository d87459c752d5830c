"""The ledger's writer: order, batches, and what happens when the database refuses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from django.db import OperationalError

from gateway import usage_writer
from gateway.usage_writer import UsageWriter

# The writer's thread opens transactions of its own.
pytestmark = pytest.mark.django_db(transaction=True)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[UsageWriter]:
    writer = UsageWriter()
    task = asyncio.create_task(writer.run())
    yield writer
    writer.stop()
    await asyncio.wait_for(task, 10)


async def test_it_works() -> None:
    done: list[int] = []
    async with running() as writer:
        for number in range(600):
            writer.submit(lambda number=number: done.append(number), must_happen=True)  # type: ignore[misc]
    # stop() came right behind them, and all were written, in order.
    assert done == list(range(600))


async def test_one_bad_write_takes_no_neighbour_along() -> None:
    done: set[str] = set()

    def fail() -> None:
        raise ValueError("no such row")

    async with running() as writer:
        futures = [
            writer.submit(lambda: done.add("a"), must_happen=True),
            writer.submit(fail, must_happen=True),
            writer.submit(lambda: done.add("b"), must_happen=True),
        ]
        results = await asyncio.gather(*futures, return_exceptions=True)
    assert done == {"a", "b"}
    assert [type(one) for one in results] == [type(None), ValueError, type(None)]


async def test_a_settlement_waits_for_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_writer, "RETRY_INTERVAL_S", 0.01)
    num_tries = 0

    def locked() -> None:
        nonlocal num_tries
        num_tries += 1
        if num_tries < 5:
            raise OperationalError("database is locked")

    async with running() as writer:
        await writer.submit(locked, must_happen=True)
    assert num_tries == 5


async def test_an_opening_does_not() -> None:
    def locked() -> None:
        raise OperationalError("database is locked")

    async with running() as writer:
        with pytest.raises(OperationalError):
            await writer.submit(locked, must_happen=False)


async def test_heartbeats_carry_what_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_writer, "HEARTBEAT_INTERVAL_S", 0.02)
    touched: list[tuple[list[str], dict[str, object]]] = []
    monkeypatch.setattr(
        usage_writer, "touch_usage", lambda ids, known: touched.append((ids, known))
    )
    counts = usage_writer.TokenCounts(3, 1, 2)
    async with running() as writer:
        beating = asyncio.create_task(writer.beat_forever())
        writer.watch("a", lambda: counts)
        writer.watch("b", lambda: None)
        await asyncio.sleep(0.1)
        writer.unwatch("a")
        writer.unwatch("b")
        await asyncio.sleep(0.1)
        num_beats = len(touched)
        await asyncio.sleep(0.1)
        beating.cancel()
    assert touched[0] == (["a", "b"], {"a": counts})
    assert len(touched) == num_beats
