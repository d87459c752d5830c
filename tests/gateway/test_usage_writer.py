"""The ledger's writer: order, batches, and what happens when the database refuses."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import DataError, OperationalError, connections

from gateway import database, usage_writer
from gateway.database import in_thread
from gateway.usage_writer import UsageWriter
from tenants.metering import TokenCounts, UsageEnd, UsageStart, open_usage, settle_usage
from tenants.models import UsageRecord
from tenants.scope import unscoped
from tests.factories import get_acme

# The writer's thread opens transactions of its own.
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
async def _leave_no_connection(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """The writer's thread is the test's own, and its connection ends with it."""
    with ThreadPoolExecutor(1) as readers:
        monkeypatch.setattr(database, "_READERS", readers)
        yield
        await in_thread(connections.close_all)
    await sync_to_async(connections.close_all)()


def nothing() -> TokenCounts | None:
    return None


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[UsageWriter]:
    writer = UsageWriter(in_thread)
    task = asyncio.create_task(writer.run())
    yield writer
    writer.stop()
    await asyncio.wait_for(task, 10)


async def start(name: str) -> UsageStart:
    acme = await sync_to_async(get_acme)()
    return UsageStart(name, acme.id, "chat.completions", "bot")


async def rows() -> dict[str, str]:
    def read() -> dict[str, str]:
        with unscoped():
            return dict(UsageRecord.objects.values_list("request_id", "status"))

    return await sync_to_async(read)()


async def test_it_works() -> None:
    one = await start("r0")
    starts = [UsageStart(f"r{n}", one.tenant_id, "chat.completions", "bot") for n in range(600)]
    async with running() as writer:
        for each in starts:
            writer.open(each, nothing)
            writer.settle(UsageEnd(each, "finished", TokenCounts(1, 0, 1)))
    # stop() came right behind them, and all were written.
    assert await rows() == {f"r{n}": "finished" for n in range(600)}


async def test_an_opening_does_not_wait_for_settlements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a while go together: a commit for each costs a client that waits its time."""
    batches: list[int] = []

    def settle(ends: Iterable[UsageEnd]) -> int:
        batches.append(len(list(ends)))
        return 0

    monkeypatch.setattr(usage_writer, "settle_usage", settle)
    monkeypatch.setattr(usage_writer, "SETTLE_DELAY_S", 0.5)
    async with running() as writer:
        for number in range(20):
            one = await start(f"r{number}")
            await writer.open(one, nothing)
            writer.settle(UsageEnd(one, "finished"))
        assert batches == []
        await asyncio.sleep(0.6)
        assert batches == [20]


async def test_a_settlement_never_goes_before_its_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends while earlier openings are being written, when settlements are due."""
    first, second = await start("first"), await start("second")
    is_open = threading.Event()
    async with running() as writer:

        def slow(starts: Iterable[UsageStart]) -> None:
            open_usage(starts)
            is_open.wait(5)

        monkeypatch.setattr(usage_writer, "open_usage", slow)
        writer.open(first, nothing)
        await asyncio.sleep(0.05)
        writer.open(second, nothing)
        writer.settle(UsageEnd(second, "cancelled"))
        await asyncio.sleep(usage_writer.SETTLE_DELAY_S * 2)
        is_open.set()
    assert await rows() == {"first": "open", "second": "cancelled"}


async def test_one_bad_opening_takes_no_neighbour_along() -> None:
    a, b = await start("a"), await start("b")
    # A NUL, which PostgreSQL takes in no text; an id, which SQLite takes in no integer.
    bad = UsageStart("bad", 2**70, "chat.completions", "b\0t")
    async with running() as writer:
        openings = [writer.open(one, nothing) for one in (a, bad, b)]
        writer.settle(UsageEnd(a, "finished"))
        results = await asyncio.gather(*openings, return_exceptions=True)
    assert [result is None for result in results] == [True, False, True]
    assert await rows() == {"a": "finished", "b": "open"}


async def test_a_settlement_waits_for_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_writer, "RETRY_INTERVAL_S", 0.01)
    num_tries = 0

    def locked(ends: Iterable[UsageEnd]) -> int:
        nonlocal num_tries
        num_tries += 1
        if num_tries < 9:
            raise OperationalError("database is locked")
        return settle_usage(ends)

    monkeypatch.setattr(usage_writer, "settle_usage", locked)
    async with running() as writer:
        for name in "ab":
            one = await start(name)
            await writer.open(one, nothing)
            writer.settle(UsageEnd(one, "finished"))
    assert await rows() == {"a": "finished", "b": "finished"}
    assert num_tries >= 9


async def test_an_opening_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(starts: Iterable[UsageStart]) -> None:
        raise OperationalError("database is locked")

    monkeypatch.setattr(usage_writer, "open_usage", locked)
    async with running() as writer:
        with pytest.raises(OperationalError):
            await writer.open(await start("a"), nothing)


async def test_what_no_row_can_hold_is_not_tried_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(ends: Iterable[UsageEnd]) -> int:
        if any(end.start.request_id == "bad" for end in ends):
            raise DataError("integer out of range")
        return settle_usage(ends)

    monkeypatch.setattr(usage_writer, "settle_usage", refuse)
    async with running() as writer:
        for name in ("bad", "good"):
            one = await start(name)
            await writer.open(one, nothing)
            writer.settle(UsageEnd(one, "finished"))
    assert await rows() == {"bad": "open", "good": "finished"}
    assert "bad cannot be settled" in caplog.text


async def test_heartbeats_carry_what_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_writer, "HEARTBEAT_INTERVAL_S", 0.02)
    touched: list[dict[str, Any]] = []
    monkeypatch.setattr(usage_writer, "touch_usage", touched.append)
    counts = TokenCounts(3, 1, 2)
    a, b = await start("a"), await start("b")
    async with running() as writer:
        beating = asyncio.create_task(writer.beat_forever())
        writer.open(a, lambda: counts)
        writer.open(b, nothing)
        await asyncio.sleep(0.2)
        writer.settle(UsageEnd(a, "finished", counts))
        writer.settle(UsageEnd(b, "cancelled"))
        await asyncio.sleep(0.2)
        num_beats = sum(map(bool, touched))
        await asyncio.sleep(0.1)
        beating.cancel()
    assert {"a": counts, "b": None} in touched
    assert sum(map(bool, touched)) == num_beats
