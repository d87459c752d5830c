"""Two web processes behind one port, under the supervisor, and kill -9 of one."""

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import openai
import pytest
import requests
from django.db import connections
from django.utils import timezone

from adapters import registry
from adapters.engine_usage import attempts_of
from adapters.models import Replica
from gateway.embedded import LOOPBACK, Addresses, listen, web_children
from gateway.supervisor import Supervisor
from tenants.models import UsageRecord
from tenants.orphans import settle_orphans
from tenants.scope import tenant_scope
from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import Behaviour, FakeReplica
from tests.gateway.live import BASE_MODEL, ROOT_DIR, Web, metric
from tests.gateway.test_resume import begin, cut, dialled, hear, say, take

T = TypeVar("T")
NUM_STREAMS = 24
STREAMS = "grafthouse_open_streams"
REQUESTS = 'grafthouse_requests_total{route="chat/completions",status="2xx"}'
WORKERS = ("web-1", "web-2")
SYS_PIDFD_GETFD = 438
LIBC = ctypes.CDLL(None, use_errno=True)


class House:
    """The part of a house that this is about."""

    def __init__(self, supervisor: Supervisor, port: int) -> None:
        self.supervisor = supervisor
        self.url = f"http://{LOOPBACK}:{port}"

    def pids(self, name: str) -> list[int]:
        """Of its lives so far that came up."""
        path = self.supervisor.log_path(name)
        log = path.read_text() if path.exists() else ""
        started = re.findall(r"Started server process \[(\d+)\]", log)
        return [int(pid) for pid in started[: log.count("Application startup complete")]]

    def connections(self, pid: int) -> list[int]:
        """TCP_NODELAY of each connection that the process has accepted."""
        found, process = [], os.pidfd_open(pid)
        for path in Path(f"/proc/{pid}/fd").iterdir():
            # One may be closed meanwhile; other files are no sockets, a listener has no peer.
            with contextlib.suppress(OSError), socket.socket(fileno=copied(process, path)) as raw:
                is_tcp = raw.family == socket.AF_INET and raw.getpeername()
                if is_tcp and self.url.endswith(f":{raw.getsockname()[1]}"):
                    found.append(raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        os.close(process)
        return found


def copied(process: int, path: Path) -> int:
    """A process's open file, as one of ours. Raises OSError for what is no socket."""
    if not os.readlink(path).startswith("socket:"):
        raise OSError(f"{path} is no socket")
    fd = LIBC.syscall(SYS_PIDFD_GETFD, process, int(path.name), 0)
    if fd < 0:
        raise OSError(ctypes.get_errno(), f"{path} cannot be copied")
    return int(fd)


async def until(what: str, probe: Callable[[], Any], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not await asyncio.to_thread(probe):
        assert time.monotonic() < deadline, f"{what}: not in time"
        await asyncio.sleep(0.05)


@pytest.fixture
async def house(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> AsyncIterator[House]:
    settings.VAR_DIR, settings.NUM_WEB_WORKERS = tmp_path, 2
    monkeypatch.setenv("DATABASE_URL", stack.database_url)
    monkeypatch.setenv("MODEL_NAME", BASE_MODEL)
    monkeypatch.setenv("SECRET_KEY", settings.SECRET_KEY)
    urls = tuple(replica.url for replica in stack.replicas)
    supervisor = Supervisor(tmp_path / "log", ROOT_DIR, lambda line: None)
    stale = tmp_path / "metrics" / "counter_1.db"
    stale.parent.mkdir()
    stale.write_bytes(b"of a former start")
    with listen(LOOPBACK, 0) as listener:
        for child in web_children(Addresses(os.environ["REDIS_URL"], urls), listener):
            supervisor.start(child)
        house = House(supervisor, listener.getsockname()[1])
        await until("both", lambda: all(house.pids(name) for name in WORKERS))
        yield house
        await supervisor.stop()


async def read(client: openai.AsyncOpenAI, texts: list[str]) -> bool:
    """Whether the stream came whole."""
    try:
        answer = await client.chat.completions.create(
            model="support-bot", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        async for chunk in answer:
            texts += [one.delta.content for one in chunk.choices if one.delta.content]
    except (openai.APIError, OSError):
        return False
    return True


def is_answered(house: House, api_key: str) -> bool:
    headers = {"authorization": f"Bearer {api_key}"}
    return requests.get(f"{house.url}/v1/models", headers=headers, timeout=30).status_code == 200


def metrics_of_many(house: House) -> set[str]:
    """/metrics over connections of their own, so that both processes answer some."""
    return {requests.get(f"{house.url}/metrics", timeout=30).text for _ in range(16)}


async def with_rows(function: Callable[[], T]) -> T:
    """In a thread, whose connection to the database is not left open."""

    def call() -> T:
        try:
            return function()
        finally:
            connections.close_all()

    return await asyncio.to_thread(call)


def customer_of(stack: Stack) -> Customer:
    customer = stack.make_customer()
    stack.activate(customer, "support-bot")
    for replica in stack.replicas:
        replica.behaviour = Behaviour(tokens=["x"] * 30, token_interval_s=0.1)
    return customer


def leave_for_dead(customer: Customer) -> list[str]:
    """The statuses of all rows, once the sweeper has found those that nobody touches any more."""
    with tenant_scope(customer.tenant.id):
        past = timezone.now() - timedelta(seconds=61)
        UsageRecord.objects.filter(status="open").update(heartbeat_at=past)
    settle_orphans(attempts_of)
    with tenant_scope(customer.tenant.id):
        return sorted(UsageRecord.objects.values_list("status", flat=True))


@pytest.mark.case("C117")
async def test_one_of_two_is_killed(house: House, stack: Stack) -> None:
    customer = await with_rows(lambda: customer_of(stack))
    texts: list[list[str]] = [[] for _ in range(NUM_STREAMS)]
    clients = [
        openai.AsyncOpenAI(
            base_url=f"{house.url}/v1", api_key=customer.api_key, max_retries=0, timeout=60
        )
        for _ in texts
    ]
    streams = []
    for pair in zip(clients, texts, strict=True):
        streams.append(asyncio.create_task(read(*pair)))
        # Who wakes first accepts all that wait: one by one, both get some.
        await asyncio.sleep(0.02)
    await until("tokens of all", lambda: all(texts))
    web = replace(stack.web, url=house.url)
    # Whoever answers: the sum of both.
    assert {await asyncio.to_thread(metric, web, STREAMS) for _ in range(8)} == {NUM_STREAMS}
    accepted = {name: house.connections(house.pids(name)[-1]) for name in WORKERS}
    # No token waits for the client's word on the one before.
    assert {*accepted["web-1"], *accepted["web-2"]} == {1}
    victim = max(WORKERS, key=lambda name: len(accepted[name]))
    os.kill(house.pids(victim)[-1], signal.SIGKILL)
    answered = [await asyncio.to_thread(is_answered, house, customer.api_key) for _ in range(10)]
    assert answered == [True] * 10
    is_whole = await asyncio.gather(*streams)
    num_whole = sum(is_whole)
    assert 0 < num_whole < NUM_STREAMS
    assert {len(one) for one, whole in zip(texts, is_whole, strict=True) if whole} == {30}
    await until("a new life", lambda: len(house.pids(victim)) == 2)
    assert house.supervisor.num_ends(victim) == 1
    # The dead one's streams are over, and what was counted is not forgotten.
    await until("no stream", lambda: metric(web, STREAMS) == 0)
    assert await asyncio.to_thread(metric, web, REQUESTS) == num_whole
    # Both say the same, unless something is counted just then.
    await until("one word of both", lambda: len(metrics_of_many(house)) == 1)
    assert not any("pid=" in text for text in await asyncio.to_thread(metrics_of_many, house))
    statuses = await with_rows(lambda: leave_for_dead(customer))
    assert statuses == ["failed"] * (NUM_STREAMS - num_whole) + ["finished"] * num_whole
    for client in clients:
        await client.close()


def read_in_pieces(web: Web, api_key: str) -> list[dict[str, Any]]:
    """One generation, a socket for every two of its frames."""
    with dialled(web, api_key) as link:
        generation = begin(link)
        frames = take(link, 2)
        cut(link)
    while frames[-1]["type"] == "chunk":
        with dialled(web, api_key) as link:
            say(link, type="resume", id="b", generation=generation, after=frames[-1]["seq"])
            assert hear(link)["type"] == "resumed"
            frames.append(hear(link))
            if frames[-1]["type"] == "chunk":
                frames.append(hear(link))
            cut(link)
    return frames


async def test_a_generation_is_resumed_whoever_answers(house: House, stack: Stack) -> None:
    customer = await with_rows(lambda: customer_of(stack))
    web = replace(stack.web, url=house.url)
    frames = await asyncio.to_thread(read_in_pieces, web, customer.api_key)
    assert [one["seq"] for one in frames] == list(range(1, len(frames) + 1))
    assert frames[-1]["usage"]["completion_tokens"] == 30
    logs = [house.supervisor.log_path(name).read_text() for name in WORKERS]
    assert all("/ws/v1/chat" in log for log in logs), "one process answered all"
    [row] = await with_rows(lambda: customer.usage(1))
    assert (row.status, row.completion_tokens) == ("finished", 30)


async def test_a_replica_that_left_the_fleet_is_in_no_metric(house: House, stack: Stack) -> None:
    """Its last word would be an alert for ever: what several processes share, none can take out."""
    replica = FakeReplica()
    series = f'grafthouse_replica_up{{replica="{replica.url}"}}'
    await with_rows(lambda: registry.register(replica.url, "grafthouse"))
    seen = lambda: [series in text for text in metrics_of_many(house)]  # noqa: E731
    await until("its gauges", lambda: all(seen()))
    replica.close()
    await with_rows(lambda: Replica.objects.filter(url=replica.url).delete())
    await until("their end", lambda: not any(seen()))
