"""Requests of all kinds, while a web process is killed and the store cuts its connections."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import openai
import pytest
import redis
from django.utils import timezone

from adapters.engine_usage import attempts_of
from tenants.models import UsageRecord
from tenants.orphans import settle_orphans
from tenants.quota import HOLD_S
from tenants.scope import tenant_scope
from tenants.store import store
from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import Behaviour, FakeReplica
from tests.gateway.live import Web, start_web, wait_for
from tests.gateway.scale import IS_FULL, at_once, client_of
from tests.services import start_valkey

NUM_REQUESTS = 10_000 if IS_FULL else 800

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


MOODS = {
    "well": Behaviour(),
    "refused": Behaviour(status=400, error={"message": "no", "code": "bad", "type": "x_error"}),
    "failed": Behaviour(error_after=2),
    "silent": Behaviour(silent_s=0.3),
    "slow": Behaviour(token_interval_s=0.05),
}
# A replica that dies takes no requests for a while: then it is about nothing else any more.
DEATH = "dies"
PERIOD_OF_DEATH = 97


@dataclass
class Mixed:
    """Requests of all kinds over two processes, one of which is killed, before a store that cuts
    its connections.
    """

    webs: list[Web]
    customer: Customer
    store_url: str
    start_another: Callable[[], Web]
    chance: random.Random
    ends: Counter[str] = field(default_factory=Counter)
    clients: dict[str, openai.AsyncOpenAI] = field(default_factory=dict)

    async def run(self) -> None:
        await at_once(NUM_REQUESTS, self.ask)
        for client in self.clients.values():
            await client.close()

    def client(self, web: Web) -> openai.AsyncOpenAI:
        if web.url not in self.clients:
            self.clients[web.url] = client_of(web, self.customer)
        return self.clients[web.url]

    async def ask(self, number: int) -> None:
        if number in (NUM_REQUESTS // 4, NUM_REQUESTS // 2, 3 * NUM_REQUESTS // 4):
            await asyncio.to_thread(self.cut_connections)
        if number == NUM_REQUESTS // 3:
            self.webs[1].process.kill()
            self.webs[1].process.wait()
            self.webs[1] = await asyncio.to_thread(self.start_another)
        mood = DEATH if number % PERIOD_OF_DEATH == 0 else self.chance.choice(list(MOODS))
        after_s = self.chance.choice([None, None, self.chance.random() * 0.4])
        client = self.client(self.webs[number % 2])
        try:
            async with asyncio.timeout(after_s):
                await read(client, mood, is_stream=self.chance.random() < 0.5)
            self.ends["whole"] += 1
        except TimeoutError:
            self.ends["left"] += 1
        except openai.APIError as error:
            self.ends[str(error.code or type(error).__name__)] += 1

    def cut_connections(self) -> None:
        with redis.Redis.from_url(self.store_url) as control:
            control.client_kill_filter(_type="normal", skipme=True)


async def read(client: openai.AsyncOpenAI, mood: str, is_stream: bool) -> None:
    asked: Any = {"model": "bot", "messages": [{"role": "user", "content": mood}]}
    answer: Any = await client.chat.completions.create(**asked, stream=is_stream)
    if is_stream:
        async with answer:
            async for _ in answer:
                pass


@pytest.fixture
def own_store(stack: Stack, settings: Any) -> Iterator[str]:
    """Whose connections may be cut."""
    process, url = start_valkey()
    settings.REDIS_URL = url
    store.cache_clear()
    yield url
    store.cache_clear()
    process.kill()
    process.wait()


@pytest.fixture
def mixed(stack: Stack, own_store: str, tmp_path: Path) -> Iterator[Mixed]:
    customer = stack.make_customer(
        max_concurrency=40, tokens_per_minute=10**8, monthly_budget=10**6
    )
    replicas = [FakeReplica(), FakeReplica()]
    digest = stack.activate(customer, "bot")
    for one in replicas:
        one.digests.add(digest)
        one.moods = MOODS | {DEATH: Behaviour(die_after=2, token_interval_s=0.05)}

    def start() -> Web:
        urls = [one.url for one in replicas]
        return start_web(tmp_path, stack.database_url, urls, REDIS_URL=own_store)

    found = Mixed([start(), start()], customer, own_store, start, random.Random(135))
    yield found
    for web in found.webs:
        web.close_clients()
        web.stop()
    for one in replicas:
        one.close()


@pytest.mark.case("C135")
def test_nothing_stays_held(mixed: Mixed) -> None:
    """Whatever ended a request: at rest nothing is reserved, and the balance is the ledger's."""
    asyncio.run(mixed.run())
    sweep(mixed.customer)
    client = replace(mixed.customer, web=mixed.webs[0]).client()

    def books_without_holds() -> Books | None:
        time.sleep(1)
        # What a killed process left is counted again from the ledger by who comes next.
        client.completions.create(model="bot", prompt="Hi")
        books = at_rest(mixed.customer)
        return None if books.num_holds else books

    # That of a request which had no row yet when its process was killed expires.
    books = wait_for("the last hold", books_without_holds, timeout_s=HOLD_S + 10)
    print(f"{dict(mixed.ends)}; rows {dict(books.statuses)}; held {books.held}")
    assert sum(mixed.ends.values()) == NUM_REQUESTS
    assert min(books.statuses[name] for name in ("finished", "failed", "cancelled")) > 0
    assert books.held == [0, 0, 0]
    assert books.counted_nanos == books.ledger_nanos > 0


@dataclass(frozen=True)
class Books:
    statuses: Counter[str]
    ledger_nanos: int
    counted_nanos: int
    held: list[int]
    num_holds: int


def sweep(customer: Customer) -> None:
    """What the killed process left open: the living touch theirs every five seconds."""
    time.sleep(6)
    with tenant_scope(customer.tenant.id):
        past = timezone.now() - timedelta(seconds=61)
        UsageRecord.objects.filter(status="open").update(heartbeat_at=past)
    settle_orphans(attempts_of)


def at_rest(customer: Customer) -> Books:
    """Once all rows are settled."""
    name = f"quota:{{{customer.tenant.id}}}"
    fields = [f"{datetime.now(UTC):%Y-%m}:nanos", "running", "held_tokens", "held_nanos"]
    with tenant_scope(customer.tenant.id):
        rows = UsageRecord.objects.all()
        wait_for("the last row", lambda: not rows.filter(status="open").exists())
        costs = rows.values_list("cost", flat=True)
        counted, *held = [int(one or 0) for one in store().hmget(f"{name}:sums", fields)]  # type: ignore[union-attr]
        return Books(
            statuses=Counter(rows.values_list("status", flat=True)),
            ledger_nanos=int(sum(cost * 10**9 for cost in costs)),
            counted_nanos=counted,
            held=held,
            num_holds=int(store().zcard(f"{name}:holds")),  # type: ignore[arg-type]
        )
