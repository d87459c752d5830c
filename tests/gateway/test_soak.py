"""A web process's memory over requests of every kind, in small.

`python -m gateway.bench.soak` is the long run; gateway/bench/LOG.md has its figures.
"""

from urllib.parse import urlsplit

import pytest

from gateway.bench.load import Target
from gateway.bench.soak import WARM_UP, Soaked, rows, soak
from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import Behaviour

NUM_REQUESTS = 1500
# A leak of one request's body, task or stream is above it; what caches and pools still take is not.
MAX_GROWTH_BYTES = 6 * 2**20


@pytest.mark.slow
async def test_memory_is_flat(stack: Stack, acme: Customer) -> None:
    for replica in stack.replicas:
        replica.behaviour = Behaviour(tokens=["x"] * 40)
    web = acme.web
    port = urlsplit(web.url).port or 0
    target = Target("ours", port, "support-bot", acme.api_key, web.process.pid)
    seen = await soak(target, NUM_REQUESTS, num_clients=8)
    assert seen.num_done == NUM_REQUESTS
    after_warm_up = [size for done, size in seen.samples if done >= 2 * WARM_UP * NUM_REQUESTS]
    assert after_warm_up[-1] - after_warm_up[0] < MAX_GROWTH_BYTES, seen.samples


def test_growth_is_what_a_request_leaves_behind() -> None:
    samples = [(100 * step, 50_000 + 100 * step * 7) for step in range(1, 21)]
    # Before the warm-up is over anything may happen.
    samples[0] = (100, 9)
    seen = Soaked(2000, num_done=2000, wall_s=10, samples=samples)
    assert seen.growth_bytes() == pytest.approx(7)
    found = {row["what"]: row["ours"] for row in rows(seen)}
    assert found["2,000 requests of all kinds: growth a request"] == 7
    assert found["2,000 requests of all kinds: rate"] == 200
