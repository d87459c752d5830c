"""kill -9 of a web process under streams from the real engine: the ledger and the counters say to
the token what the engines say.
"""

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import openai
import pytest
import requests
from django.db.models import Sum
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from adapters.engine_usage import attempts_of
from adapters.models import Replica
from tenants.models import UsageRecord
from tenants.orphans import settle_orphans
from tenants.scope import tenant_scope
from tenants.store import store
from tests.gateway.conftest import Customer, Stack
from tests.gateway.engine_process import Engine, load, start_engine
from tests.gateway.fake_replica import Behaviour, FakeReplica
from tests.gateway.live import (
    BASE_MODEL,
    Web,
    default_database,
    default_store,
    make_database,
    metric,
    start_web,
    wait_for,
)
from tests.services import free_port
from tests.tiny import make_adapter, make_base

pytestmark = pytest.mark.slow

LONG: dict[str, Any] = {
    "model": "bot",
    "messages": [{"role": "user", "content": "Hi there"}],
    "stream": True,
    "extra_body": {"ignore_eos": True},
}
NUM_STREAMS = 24
COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens")


@dataclass
class House:
    """Two real engines, one replica that loses every request, and as many web processes as a test
    starts.
    """

    stack: Stack
    engines: list[Engine]
    adapter: Path
    webs: list[Web] = field(default_factory=list)

    def start_engine(self, place: int) -> None:
        """With its record in a file, from where its next life knows it."""
        old = self.engines[place]
        usage_file = self.stack.folder / f"usage-{place}.jsonl"
        self.engines[place] = start_engine(old.base, old.port, "--usage-file", str(usage_file))

    def kill_engine(self, place: int) -> None:
        self.engines[place].process.kill()
        self.engines[place].process.wait(10)

    def start_web(self) -> Web:
        urls = [*(one.url for one in self.engines), self.stack.replicas[0].url]
        web = start_web(self.stack.folder, self.stack.database_url, urls)
        self.webs.append(web)
        for url in urls:
            up = f'grafthouse_replica_up{{replica="{url}"}}'
            wait_for("the replicas", lambda up=up: metric(web, up) == 1, 90)  # type: ignore[misc]
        return web

    def customer(self, web: Web) -> Customer:
        made = self.stack.make_customer(monthly_budget=1000)
        self.stack.activate(made, "bot", digest=self.load_all())
        return replace(made, web=web)

    def load_all(self) -> str:
        [digest] = {load(one, self.adapter) for one in self.engines}
        return digest

    def records(self, rows: list[UsageRecord]) -> dict[str, dict[str, Any]]:
        """What the engines know of these requests, the latest attempt at each; once none runs."""
        body = {"request_ids": [row.request_id for row in rows]}

        def ended() -> list[dict[str, Any]] | None:
            answers = [requests.post(f"{one.url}/usage", json=body) for one in self.engines]
            found = [record for answer in answers for record in answer.json()["records"]]
            return None if any(one["outcome"] == "running" for one in found) else found

        found = wait_for("the end of all", lambda: (ended(),) if ended() is not None else None)[0]
        assert found is not None
        return {one["request_id"]: one for one in sorted(found, key=lambda one: one["attempt"])}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("killed")
    base = make_base(folder / "base")
    adapter = make_adapter(folder / "adapter", base, seed=1)
    lossy = FakeReplica()
    lossy.behaviour = Behaviour(die_after=0)
    with ExitStack() as cleanup:
        cleanup.callback(lossy.close)
        stack = Stack(None, [lossy], make_database(folder), folder)  # type: ignore[arg-type]
        engines = [Engine(base, free_port(), None) for _ in range(2)]  # type: ignore[arg-type]
        house = House(stack, engines, adapter)
        for place in range(2):
            house.start_engine(place)
            cleanup.callback(lambda place=place: house.kill_engine(place))
        yield house


@pytest.fixture
def house(built: House, django_db_blocker: DjangoDbBlocker) -> Iterator[House]:
    with (
        django_db_blocker.unblock(),
        default_database(built.stack.database_url),
        default_store(),
    ):
        for one in built.engines:
            Replica.objects.get_or_create(url=one.url)
            wait_for("the engine", lambda one=one: is_up(one), timeout_s=90)  # type: ignore[misc]
            first = {"model": BASE_MODEL, "prompt": "Hi", "max_tokens": 1}
            requests.post(f"{one.url}/v1/completions", json=first, timeout=60)
        yield built
        for web in built.webs:
            web.close_clients()
            web.process.kill()
            web.process.wait()
        built.webs.clear()


def is_up(engine: Engine) -> bool:
    try:
        return requests.get(f"{engine.url}/ready", timeout=5).ok
    except requests.ConnectionError:
        return False


def rows_of(customer: Customer) -> list[UsageRecord]:
    with tenant_scope(customer.tenant.id):
        return list(UsageRecord.objects.order_by("id"))


def kill(web: Web) -> None:
    web.process.send_signal(signal.SIGKILL)
    web.process.wait()


def sweep() -> None:
    settle_orphans(attempts_of, timezone.now() + timedelta(seconds=61))


def check_counters(customer: Customer) -> None:
    """One more request, then the month's counters are the ledger's sums, and nothing is held."""
    short = LONG | {"stream": False, "max_tokens": 3}
    customer.client().chat.completions.create(**short)

    def agree() -> bool:
        rows = rows_of(customer)
        month = datetime.now(UTC).strftime("%Y-%m")
        names = [f"{month}:tokens", f"{month}:nanos", "running", "held_tokens", "held_nanos"]
        num_tokens = sum((row.prompt_tokens or 0) + (row.completion_tokens or 0) for row in rows)
        wanted = [num_tokens, int(sum(row.cost for row in rows) * 10**9), 0, 0, 0]
        found = store().hmget(f"quota:{{{customer.tenant.id}}}:sums", names)
        return [int(one or 0) for one in found] == wanted  # type: ignore[union-attr]

    wait_for("counters that agree", agree, timeout_s=5)


@pytest.mark.case("C135")
@pytest.mark.parametrize("restarts", [False, True], ids=["", "and the engine starts anew"])
def test_a_killed_web_process_is_charged_what_the_engine_made(house: House, restarts: bool) -> None:
    """Long before its first heartbeat: the ledger knew nothing."""
    web = house.start_web()
    customer = house.customer(web)
    stream = iter(customer.client().chat.completions.create(**LONG, n=8, max_tokens=450))
    seen = [next(stream) for _ in range(80)]
    kill(web)
    [row] = rows_of(customer)
    assert (row.status, row.completion_tokens) == ("open", None)
    record = house.records([row])[row.request_id]
    assert record["outcome"] == "aborted"
    num_seen = sum(bool(one.choices[0].delta.content) for one in seen)
    assert num_seen <= record["completion_tokens"] < 8 * 450
    if restarts:
        for place in range(2):
            house.kill_engine(place)
            house.start_engine(place)
        wait_for("the engines", lambda: all(map(is_up, house.engines)), timeout_s=90)
    sweep()
    [row] = rows_of(customer)
    assert (row.status, row.error_code, row.digest) == ("failed", "orphaned", record["digest"])
    assert [getattr(row, name) for name in COUNTS] == [record[name] for name in COUNTS]
    assert row.cost > 0
    house.load_all()
    check_counters(replace(customer, web=house.start_web()))


def num_running(house: House) -> int:
    states = [requests.get(f"{one.url}/state", timeout=10).json() for one in house.engines]
    return sum(state["num_running"] for state in states)


@pytest.mark.case("C135")
def test_a_plain_answer_that_was_not_given_is_free(house: House) -> None:
    web = house.start_web()
    customer = house.customer(web)
    body = LONG | {"stream": False, "n": 8, "max_tokens": 450}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(customer.client().chat.completions.create, **body)
        wait_for("tokens", lambda: num_running(house))
        kill(web)
        assert isinstance(asked.exception(), openai.APIConnectionError)
    wait_for("the abort", lambda: not num_running(house))
    sweep()
    [row] = rows_of(customer)
    assert (row.status, row.error_code, row.completion_tokens, row.cost) == (
        "failed",
        "orphaned",
        None,
        0,
    )
    check_counters(replace(customer, web=house.start_web()))


def test_what_nobody_knows_is_not_charged(house: House) -> None:
    """The engine is killed first: that it made tokens was never reported."""
    web = house.start_web()
    customer = house.customer(web)
    stream = iter(customer.client().chat.completions.create(**LONG, n=8, max_tokens=450))
    for _ in range(20):
        next(stream)
    web.process.send_signal(signal.SIGSTOP)
    for place in range(2):
        house.kill_engine(place)
    kill(web)
    for place in range(2):
        house.start_engine(place)
    wait_for("the engines", lambda: all(map(is_up, house.engines)), timeout_s=90)
    sweep()
    [row] = rows_of(customer)
    assert (row.status, row.error_code, row.completion_tokens, row.cost) == (
        "failed",
        "orphaned",
        None,
        0,
    )


@dataclass
class Stream:
    model: str
    max_tokens: int
    num_seen: int = 0

    async def read(self, client: openai.AsyncOpenAI) -> None:
        body = LONG | {"model": self.model, "max_tokens": self.max_tokens}
        with contextlib.suppress(openai.APIError, OSError):
            async for chunk in await client.chat.completions.create(**body):
                self.num_seen += bool(chunk.choices[0].delta.content)


async def kill_under(streams: list[Stream], customer: Customer, webs: list[Web], at: int) -> None:
    """The first of the web processes, when so many chunks were seen of all."""
    clients = [
        openai.AsyncOpenAI(base_url=f"{web.url}/v1", api_key=customer.api_key, max_retries=0)
        for web in webs
    ]
    tasks = [
        asyncio.create_task(stream.read(clients[number % len(clients)]))
        for number, stream in enumerate(streams)
    ]
    deadline = time.monotonic() + 60
    while sum(one.num_seen for one in streams) < at and time.monotonic() < deadline:
        await asyncio.sleep(0.002)
    await asyncio.to_thread(kill, webs[0])
    await asyncio.gather(*tasks)
    for client in clients:
        await client.close()


@pytest.mark.case("C135")
@pytest.mark.parametrize("seed", range(4))
def test_the_ledger_is_the_sum_of_the_engines_records(house: House, seed: int) -> None:
    """Whenever the process is killed: early, most streams have no token yet; late, some have ended
    and are not settled. Each row is what the engines say, and so is the sum; who was lost by the
    third replica first pays for one attempt.
    """
    rng = random.Random(seed)
    webs = [house.start_web(), house.start_web()]
    customer = house.customer(webs[1])
    models = ("bot", "bot", BASE_MODEL, BASE_MODEL)
    streams = [Stream(models[n % 4], rng.randint(1, 60)) for n in range(NUM_STREAMS)]
    num_all = sum(one.max_tokens for one in streams)
    asyncio.run(kill_under(streams, customer, webs, int(num_all * seed / 4)))
    for name in ("grafthouse_open_streams", "grafthouse_usage_writer_queue"):
        wait_for(name, lambda name=name: metric(webs[1], name) == 0)  # type: ignore[misc]
    records = house.records(rows_of(customer))
    sweep()
    # A busy machine's replica may miss a poll: who then finds none but the lossy one had nothing.
    rows = [row for row in rows_of(customer) if row.error_code != "no_replica"]
    assert {row.status for row in rows} <= {"finished", "failed"}
    num_made = 0
    for row in rows:
        record = records.get(row.request_id)
        made = record if record and record["completion_tokens"] else dict.fromkeys(COUNTS)
        assert {name: getattr(row, name) for name in COUNTS} == {n: made[n] for n in COUNTS}
        num_made += made["completion_tokens"] or 0
    with tenant_scope(customer.tenant.id):
        booked = UsageRecord.objects.aggregate(tokens=Sum("completion_tokens"))["tokens"]
    assert booked == num_made >= sum(one.num_seen for one in streams)
    # Of the base's, who asked the idle one first.
    assert any(one["attempt"] > 1 for one in records.values())
    check_counters(customer)
