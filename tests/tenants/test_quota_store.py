"""The counter store fails, is slow, loses its memory.

Callers are cancelled. Real processes and sockets.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from urllib.parse import urlparse

import pytest
import redis

from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.quota import Quota
from tenants.reservation import Reservation
from tests.services import free_port, start_valkey
from tests.tenants.test_quota import Books, caller, refused


@asynccontextmanager
async def slow_proxy(url: str, delay_s: float) -> AsyncIterator[str]:
    """A TCP relay that holds every reply back for delay_s: the URL of its front."""
    target = urlparse(url)
    relays: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wait_s: float
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await asyncio.sleep(wait_s)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(target.hostname, target.port)
        writers.append(back)
        await asyncio.gather(pump(reader, back, 0), pump(there, writer, delay_s))

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        relays.add(asyncio.create_task(relay(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.close()
        for one in relays:
            one.cancel()
        await asyncio.gather(*relays, return_exceptions=True)
        for writer in writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


@pytest.fixture(scope="module")
def store_url() -> Iterator[str]:
    process, url = start_valkey()
    yield url
    process.kill()
    process.wait()


@pytest.mark.case("C139")
async def test_a_store_that_is_down_admits_nobody() -> None:
    quota = Quota(url=f"redis://127.0.0.1:{free_port()}/0")
    error = await refused(quota, caller(), "a")
    assert (error.status, error.code, error.type) == (503, "quota_unavailable", "server_error")
    assert error.headers["retry-after"] == "2"
    await quota.close()


@pytest.mark.case("C139")
async def test_a_store_that_dies_and_comes_back_empty() -> None:
    """Nothing raises, and what ran meanwhile is in the budget afterwards.

    Counted from the ledger.
    """
    port = free_port()
    process, url = start_valkey(port)
    books = Books()
    quota = Quota(ledger=books, url=url, hold_s=0.4)
    who = caller(monthly_budget_nanos=1000)
    held = await quota.reserve(who, "a", 1, 600)
    process.kill()
    process.wait()
    assert (await refused(quota, who, "b")).status == 503
    await quota.settle(held, 1, 600)
    process, _ = start_valkey(port)
    books.spent_nanos, books.recent_ids = 600, ["a"]
    await asyncio.sleep(0.5)
    await refused(quota, who, "b", cost=401)
    await quota.reserve(who, "b", 1, 400)
    await quota.close()
    process.kill()
    process.wait()


@pytest.mark.case("C139")
async def test_a_stalled_store_is_given_up(store_url: str) -> None:
    async with slow_proxy(store_url, delay_s=30) as url:
        quota = Quota(url=url)
        async with asyncio.timeout(8):
            error = await refused(quota, caller(), "a")
        assert error.status == 503
        await quota.close()


@pytest.mark.case("C139")
async def test_a_store_that_takes_no_writes_admits_nobody() -> None:
    """At a peer a limiter without its store answered 500, or let everything through. Here it is
    503 with a time to come back; what ended meanwhile is settled once writes are taken again.
    """
    process, url = start_valkey()
    books = Books()
    quota = Quota(ledger=books, url=url, hold_s=0.4)
    who = caller(monthly_budget_nanos=1000, max_concurrency=2)
    held = await quota.reserve(who, "a", 1, 600)
    await quota._client.config_set("maxmemory", "1")
    error = await refused(quota, who, "b")
    assert (error.status, error.code) == (503, "quota_unavailable")
    assert error.headers["retry-after"] == "2"
    await quota.settle(held, 1, 600)
    books.spent_nanos, books.recent_ids = 600, ["a"]
    await quota._client.config_set("maxmemory", "0")
    await asyncio.sleep(0.5)
    await refused(quota, who, "b", cost=401)
    await quota.reserve(who, "b", 1, 400)
    await quota.close()
    process.kill()
    process.wait()


@pytest.mark.case("C119")
async def test_a_cancelled_call_hands_its_reply_to_nobody(store_url: str) -> None:
    """Two tenants with different limits, random aborts, a slow store.

    Every answer is the asker's.
    """
    tenants = [caller(requests_per_minute=10**6), caller(requests_per_minute=10**7)]
    async with slow_proxy(store_url, delay_s=0.02) as url:
        quota = Quota(url=url)
        wrong: list[Reservation] = []
        num_cancelled = 0

        async def ask(number: int) -> None:
            nonlocal num_cancelled
            who = tenants[number % 2]
            call = asyncio.create_task(quota.reserve(who, f"r{number}", 1, 0))
            if random.random() < 0.5:
                await asyncio.sleep(random.random() * 0.06)
                call.cancel()
            try:
                held = await call
            except asyncio.CancelledError:
                num_cancelled += 1
                return
            limit = str(who.limits.requests_per_minute)
            if (
                held.headers["x-ratelimit-limit-requests"] != limit
                or held.request_id != f"r{number}"
            ):
                wrong.append(held)
            await quota.settle(held, 1, 0)

        for start in range(0, 600, 60):
            await asyncio.gather(*(ask(number) for number in range(start, start + 60)))
        assert wrong == []
        assert num_cancelled > 50
        await quota.close()
    assert await num_held(store_url, tenants) == 0


async def test_a_settlement_is_sent_before_it_returns(store_url: str) -> None:
    """An answer's last byte follows it: whoever then asks another process finds it settled."""
    who = caller(max_concurrency=1)
    quota = Quota(url=store_url)
    other = redis.Redis.from_url(store_url)
    for number in range(50):
        settle = quota.settle if number % 2 else partial(refund, quota)
        settling = settle(await quota.reserve(who, f"r{number}", 1, 0), 1, 0)
        # The loop has no turn before this.
        assert other.zcard(f"quota:{{{who.tenant_id}}}:holds") == 0
        assert not settling.done()
    other.close()
    await quota.close()


def refund(quota: Quota, held: Reservation, *_: int) -> "asyncio.Task[None]":
    return quota.release(held)


async def num_held(url: str, tenants: list[Principal]) -> int:
    quota = Quota(url=url)
    held = [await quota._client.zcard(f"quota:{{{one.tenant_id}}}:holds") for one in tenants]
    await quota.close()
    return sum(held)


@pytest.mark.case("C135")
async def test_nothing_is_held_at_rest(store_url: str) -> None:
    """Success, refusal, release, cancellation, mixed.

    At rest nothing is held and the books agree.
    """
    books = Books()
    who = caller(max_concurrency=8, monthly_budget_nanos=10**6)
    quota = Quota(ledger=books, url=store_url)
    spent = 0

    async def ask(number: int) -> None:
        nonlocal spent
        call = asyncio.create_task(quota.reserve(who, f"r{number}", 10, 100))
        if number % 5 == 0:
            await asyncio.sleep(0)
            call.cancel()
        try:
            held = await call
        except (ApiError, asyncio.CancelledError):
            return
        if number % 3 == 0:
            await quota.release(held)
        else:
            await quota.settle(held, 7, 60)
            spent += 60

    for start in range(0, 500, 25):
        await asyncio.gather(*(ask(number) for number in range(start, start + 25)))
    await quota.close()
    check = Quota(url=store_url)
    sums = await check._client.hgetall(f"quota:{{{who.tenant_id}}}:sums")
    keys = await check._client.hgetall(f"quota:{{{who.tenant_id}}}:sums:1")
    await check.close()
    assert await num_held(store_url, [who]) == 0
    for left in (sums, keys):
        assert [left[name] for name in ("running", "held_tokens", "held_nanos")] == ["0"] * 3
    assert [int(value) for name, value in sums.items() if name.endswith(":nanos")] == [spent]
    assert spent > 0
