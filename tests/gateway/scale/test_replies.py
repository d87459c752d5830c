"""Replies of the counter store, 50 ms late, to clients that leave at any moment."""

import asyncio
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest
import redis

from tests.gateway.conftest import Stack
from tests.gateway.live import Web, start_web
from tests.gateway.scale import IS_FULL, at_once, client_of
from tests.tenants.test_quota_store import slow_proxy

NUM_REQUESTS = 5_000 if IS_FULL else 400
STORE_DELAY_S = 0.05

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@dataclass
class Seen:
    """What the answers to two tenants said of whose they are."""

    wrong: list[str] = field(default_factory=list)
    num_answers: int = 0
    num_left: int = 0
    # By a store that took too long: nobody's reply is better than another's.
    num_refused: int = 0

    async def ask(
        self, client: openai.AsyncOpenAI, truth: tuple[str, str], leave_after_s: float | None
    ) -> None:
        create = client.chat.completions.with_raw_response.create
        try:
            async with asyncio.timeout(leave_after_s):
                raw = await create(model="bot", messages=[{"role": "user", "content": "Hi"}])
        except TimeoutError:
            self.num_left += 1
            return
        except openai.InternalServerError as error:
            assert error.code == "quota_unavailable"
            self.num_refused += 1
            return
        answer = raw.parse()
        found = (answer.system_fingerprint, raw.headers["x-ratelimit-limit-requests"])
        self.num_answers += 1
        if found != truth:
            self.wrong.append(f"{found} instead of {truth}")


def num_connections(url: str) -> int:
    with redis.Redis.from_url(url) as control:
        return int(control.info("clients")["connected_clients"])


@pytest.mark.case("C119")
def test_replies_go_to_who_asked(stack: Stack, tmp_path: Path) -> None:
    """Key, model, and limits of each answer are the asker's, whoever left meanwhile and whenever;
    and connections to the store are neither lost nor piled up.
    """
    limits = (10**6, 10**7)
    customers = [stack.make_customer(requests_per_minute=limit) for limit in limits]
    digests = [stack.activate(one, "bot") for one in customers]
    truths = [(digest, str(limit)) for digest, limit in zip(digests, limits, strict=True)]
    chance, seen = random.Random(119), Seen()
    url = os.environ["REDIS_URL"]

    async def abort_many(web: Web) -> tuple[int, int]:
        """Connections to the store, before and after."""
        async with client_of(web, customers[0]) as one, client_of(web, customers[1]) as two:
            asked = list(zip((one, two), truths, strict=True))

            async def ask(number: int) -> None:
                after_s = chance.choice([None, chance.random() * 0.4])
                await seen.ask(*asked[number % 2], after_s)

            for number in range(20):
                await seen.ask(*asked[number % 2], None)
            before = num_connections(url)
            await at_once(NUM_REQUESTS, ask)
            for number in range(20):
                await seen.ask(*asked[number % 2], None)
            return before, num_connections(url)

    async def run() -> tuple[int, int]:
        urls = [one.url for one in stack.replicas]
        async with slow_proxy(url, STORE_DELAY_S) as slow:
            web = await asyncio.to_thread(
                lambda: start_web(tmp_path, stack.database_url, urls, REDIS_URL=slow)
            )
            try:
                return await abort_many(web)
            finally:
                await asyncio.to_thread(web.stop)

    before, after = asyncio.run(run())
    print(f"{seen}; {before} to {after} connections")
    assert seen.wrong == []
    assert min(seen.num_answers, seen.num_left) > NUM_REQUESTS / 5
    assert seen.num_refused < NUM_REQUESTS / 20
    assert abs(after - before) <= 3
