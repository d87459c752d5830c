"""A replica that no setting names announces itself, gets requests, and is forgotten."""

from collections.abc import Iterator

import pytest
import requests

from adapters import registry
from adapters.models import Replica
from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import Behaviour, FakeReplica
from tests.gateway.live import BASE_MODEL, REPLICA_TOKEN, metric, wait_for

BODY = {"model": BASE_MODEL, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def newcomer(stack: Stack) -> Iterator[FakeReplica]:
    replica = FakeReplica()
    yield replica
    replica.close()
    Replica.objects.filter(url=replica.url).delete()
    wait_for("its end", lambda: f'replica="{replica.url}"' not in metrics_of(stack))


def metrics_of(stack: Stack) -> str:
    return requests.get(f"{stack.web.url}/metrics", timeout=5).text


def announce(stack: Stack, url: str, token: str = REPLICA_TOKEN) -> int:
    headers = {"authorization": f"Bearer {token}"}
    where = f"{stack.web.url}/api/fleet/announce/"
    return requests.post(where, json={"url": url}, headers=headers, timeout=5).status_code


def test_it_works(stack: Stack, acme: Customer, newcomer: FakeReplica) -> None:
    assert announce(stack, newcomer.url, "wrong") == 401
    assert announce(stack, newcomer.url) == 200
    up = f'grafthouse_replica_up{{replica="{newcomer.url}"}}'
    wait_for("the newcomer", lambda: up in metrics_of(stack) and metric(stack.web, up) == 1)
    # It alone is free: the base model goes by load.
    slow = Behaviour(tokens=["x"] * 200, token_interval_s=0.02)
    ask = acme.client().chat.completions.create
    for replica in stack.replicas:
        replica.behaviour = slow
    streams = [ask(**BODY, stream=True) for _ in range(4)]  # type: ignore[call-overload]
    wait_for("a request of its own", lambda: newcomer.bodies)
    for stream in streams:
        stream.close()


def test_what_it_runs_ends_although_it_is_forgotten(
    stack: Stack, acme: Customer, newcomer: FakeReplica
) -> None:
    newcomer.behaviour = Behaviour(tokens=["x"] * 60, token_interval_s=0.05)
    assert announce(stack, newcomer.url) == 200
    up = f'grafthouse_replica_up{{replica="{newcomer.url}"}}'
    wait_for("the newcomer", lambda: up in metrics_of(stack) and metric(stack.web, up) == 1)
    busy = Behaviour(tokens=["y"] * 60, token_interval_s=0.05)
    for replica in stack.replicas:
        replica.behaviour = busy
    ask = acme.client().chat.completions.create
    streams = [ask(**BODY, stream=True, max_tokens=60) for _ in range(6)]  # type: ignore[call-overload]
    wait_for("a request of its own", lambda: newcomer.bodies)
    Replica.objects.filter(url=newcomer.url).delete()
    texts = ["".join(chunk.choices[0].delta.content or "" for chunk in one) for one in streams]
    assert sorted(set(texts)) == ["x" * 60, "y" * 60]
    wait_for("its end", lambda: up not in metrics_of(stack))
    assert newcomer.url not in registry.fleet()
