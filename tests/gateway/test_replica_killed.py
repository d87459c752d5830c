"""Two replicas, thirty-two requests, kill -9: real processes, sockets and clients."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from subprocess import Popen
from typing import Any

import openai
import pytest
import requests

from tests.gateway.conftest import Stack
from tests.gateway.fake_replica import CACHED_TOKENS, PROMPT_TOKENS
from tests.gateway.live import metric, start_web
from tests.gateway.replica_process import NUM_BEFORE_GATE, NUM_TOKENS, start

NUM_EACH = 16
WHOLE = "".join(f"{number} " for number in range(NUM_TOKENS))


@dataclass(frozen=True)
class Pair:
    """Two replicas as processes by URL, behind a web process of their own."""

    stack: Stack
    gate: Path
    processes: dict[str, Popen[bytes]]
    digest: str

    def num_running(self, url: str) -> int:
        return int(requests.get(f"{url}/state", timeout=10).json()["num_running"])

    def kill(self, url: str) -> None:
        self.processes[url].kill()
        self.processes[url].wait()


@pytest.fixture
def pair(stack: Stack, tmp_path: Path) -> Iterator[Pair]:
    gate, digest = tmp_path / "gate", sha256(str(tmp_path).encode()).hexdigest()
    with ExitStack() as cleanup:
        processes = {}
        for _ in range(2):
            process, url = start(gate, digest)
            cleanup.enter_context(process)
            cleanup.callback(process.kill)
            processes[url] = process
        web = start_web(tmp_path, stack.database_url, list(processes))
        cleanup.callback(web.stop)
        yield Pair(replace(stack, web=web, replicas=[]), gate, processes, digest)


@dataclass
class Asked:
    """A plain answer comes as one text."""

    prompt: str
    is_stream: bool = True
    texts: list[str] = field(default_factory=list)
    error: str = ""

    async def read(self, client: openai.AsyncOpenAI) -> None:
        try:
            answer: Any = await client.chat.completions.create(
                model="support-bot",
                messages=[{"role": "user", "content": self.prompt}],
                stream=self.is_stream,
            )
            if not self.is_stream:
                self.texts.append(answer.choices[0].message.content)
                return
            async for chunk in answer:
                self.texts += [one.delta.content for one in chunk.choices if one.delta.content]
        except openai.APIError as error:
            self.error = str(error.code)


async def kill_one_of_two(pair: Pair, api_key: str, streams: list[Asked]) -> tuple[str, int]:
    """(the killed replica, how many ran there), once all of them have ended."""
    url = f"{pair.stack.web.url}/v1"
    talking = [one for one in streams if one.is_stream and one.prompt.startswith("talk")]
    async with openai.AsyncOpenAI(base_url=url, api_key=api_key, max_retries=0) as client:
        tasks = [asyncio.create_task(one.read(client)) for one in streams]
        async with asyncio.timeout(60):
            while min([len(one.texts) for one in talking], default=99) < NUM_BEFORE_GATE or sum(
                [await asyncio.to_thread(pair.num_running, url) for url in pair.processes]
            ) < len(streams):
                await asyncio.sleep(0.02)
            # Of plain answers nobody sees the tokens that are there.
            await asyncio.sleep(0 if talking else 1)
            victim = next(iter(pair.processes))
            num_there = await asyncio.to_thread(pair.num_running, victim)
            await asyncio.to_thread(pair.kill, victim)
            pair.gate.touch()
            await asyncio.gather(*tasks)
    return victim, num_there


@pytest.mark.case("C123")
@pytest.mark.case("C132")
def test_kill_9_under_32_streams(pair: Pair) -> None:
    customer = pair.stack.make_customer()
    pair.stack.activate(customer, "support-bot", digest=pair.digest)
    waiting = [Asked(f"wait {number}") for number in range(NUM_EACH)]
    talking = [Asked(f"talk {number}") for number in range(NUM_EACH)]
    victim, num_there = asyncio.run(kill_one_of_two(pair, customer.api_key, [*waiting, *talking]))
    # Who had no token yet never knew.
    assert {("".join(one.texts), one.error) for one in waiting} == {(WHOLE, "")}
    cut = [one for one in talking if one.error]
    assert {one.error for one in cut} == {"replica_failed"}
    assert {len(one.texts) for one in cut} == {NUM_BEFORE_GATE}
    assert {"".join(one.texts) for one in talking if not one.error} == {WHOLE}
    num_moved = num_there - len(cut)
    assert num_moved > 0 and 0 < len(cut) < NUM_EACH, "both kinds ran on both replicas"
    assert metric(pair.stack.web, "grafthouse_upstream_retries_total") == num_moved

    rows = customer.usage(2 * NUM_EACH)
    failed = [row for row in rows if row.status == "failed"]
    assert {(row.error_code, row.replica) for row in failed} == {("replica_failed", victim)}
    assert len(failed) == len(cut)
    assert {row.status for row in rows if row.replica != victim} == {"finished"}
    # What clients have seen is what is billed, whoever produced it, and once.
    num_seen = sum(len(one.texts) for one in [*waiting, *talking])
    assert sum(row.completion_tokens or 0 for row in rows) == num_seen
    prompt = Decimal(PROMPT_TOKENS - CACHED_TOKENS) * 250 + Decimal(CACHED_TOKENS) * 125
    assert sum(row.cost for row in rows) == (len(rows) * prompt + num_seen * 1000) / 10**8


@pytest.mark.case("C123")
@pytest.mark.case("C132")
def test_kill_9_under_32_plain_requests(pair: Pair) -> None:
    """Half of them in the middle of their answer: all are answered, whole, and pay for that."""
    customer = pair.stack.make_customer()
    pair.stack.activate(customer, "support-bot", digest=pair.digest)
    asked = [
        Asked(f"{kind} {number}", is_stream=False)
        for kind in ("wait", "talk")
        for number in range(NUM_EACH)
    ]
    victim, num_there = asyncio.run(kill_one_of_two(pair, customer.api_key, asked))
    assert {("".join(one.texts), one.error) for one in asked} == {(WHOLE, "")}
    assert 0 < num_there < len(asked)
    assert metric(pair.stack.web, "grafthouse_upstream_retries_total") == num_there
    num_lost = metric(pair.stack.web, 'grafthouse_lost_tokens_total{kind="completion"}')
    assert num_lost > 0 and num_lost % NUM_BEFORE_GATE == 0
    rows = customer.usage(len(asked))
    assert {(row.status, row.completion_tokens) for row in rows} == {("finished", NUM_TOKENS)}
    assert victim not in {row.replica for row in rows}
