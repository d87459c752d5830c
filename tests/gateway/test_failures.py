"""Replicas that die, lie or are silent, clients that leave: one row, right tokens, no leak."""

import http.client
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from urllib.parse import urlsplit

import openai
import pytest

from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import CACHED_TOKENS, PROMPT_TOKENS, Behaviour, FakeReplica
from tests.gateway.live import BASE_MODEL, metric, wait_for

MESSAGES = [{"role": "user", "content": "Hi"}]
BODY = {"model": "support-bot", "messages": MESSAGES}
LONG = ["x"] * 400


def stream(customer: Customer) -> Iterator[str]:
    chunks = customer.client().chat.completions.create(**BODY, stream=True)  # type: ignore[call-overload]
    for chunk in chunks:
        yield chunk.choices[0].delta.content or ""


def behave(stack: Stack, **fields: object) -> None:
    for replica in stack.replicas:
        replica.behaviour = Behaviour(**fields)  # type: ignore[arg-type]


def num_running(stack: Stack) -> int:
    return sum(one.num_running for one in stack.replicas)


def other_and_first(stack: Stack, customer: Customer) -> tuple[FakeReplica, FakeReplica]:
    """(the second choice, the first choice) for support-bot."""
    customer.client().chat.completions.create(**BODY)  # type: ignore[call-overload]
    stack.replicas.sort(key=lambda replica: len(replica.bodies))
    return stack.replicas[0], stack.replicas[1]


@pytest.mark.case("C132")
def test_a_replica_that_dies_mid_stream(stack: Stack, acme: Customer) -> None:
    behave(stack, die_after=3, token_interval_s=0.05)
    texts: list[str] = []
    with pytest.raises(openai.APIError) as caught:
        for text in stream(acme):
            texts.append(text)
    assert caught.value.code == "replica_failed"
    assert "".join(texts) == "Hello world"
    [row] = acme.usage(1)
    counts = (row.status, row.prompt_tokens, row.cached_tokens, row.completion_tokens)
    assert counts == ("failed", PROMPT_TOKENS, CACHED_TOKENS, 3)
    assert (row.error_code, row.cost) == ("replica_failed", Decimal("0.000055"))


@pytest.mark.case("C123")
def test_a_replica_lost_before_its_first_token_is_replaced_unseen(
    stack: Stack, acme: Customer
) -> None:
    _, first = other_and_first(stack, acme)
    first.behaviour = Behaviour(die_after=0, token_interval_s=0.05)
    retries = metric(stack.web, "grafthouse_upstream_retries_total")
    assert "".join(stream(acme)) == "Hello world! ✓"
    assert metric(stack.web, "grafthouse_upstream_retries_total") == retries + 1
    # One row for each request, and the failed attempt is not in it.
    row = acme.usage(2)[-1]
    assert (row.status, row.prompt_tokens, row.completion_tokens) == ("finished", PROMPT_TOKENS, 5)
    assert row.replica != first.url


def test_a_replica_that_is_gone_is_replaced_and_comes_back(stack: Stack, acme: Customer) -> None:
    _, first = other_and_first(stack, acme)
    first.stop()
    try:
        assert "".join(stream(acme)) == "Hello world! ✓"
    finally:
        first.start()

    up = f'grafthouse_replica_up{{replica="{first.url}"}}'
    wait_for("the replica", lambda: metric(stack.web, up) == 1, timeout_s=10)
    first.bodies.clear()
    assert "".join(stream(acme)) == "Hello world! ✓"
    assert len(first.bodies) == 1


def test_a_busy_replica_is_passed_over(stack: Stack, acme: Customer) -> None:
    _, first = other_and_first(stack, acme)
    busy = {"message": "full", "type": "server_error", "param": None, "code": "overloaded"}
    first.behaviour = Behaviour(status=503, error=busy)
    assert "".join(stream(acme)) == "Hello world! ✓"


def test_when_all_are_busy_the_answer_says_so(stack: Stack, acme: Customer) -> None:
    busy = {"message": "full", "type": "server_error", "param": None, "code": "overloaded"}
    behave(stack, status=503, error=busy)
    with pytest.raises(openai.InternalServerError) as caught:
        acme.client().chat.completions.create(**BODY)  # type: ignore[call-overload]
    assert (caught.value.status_code, caught.value.code) == (503, "overloaded")
    assert caught.value.response.headers["retry-after"] == "1"
    assert acme.usage(1)[0].cost == 0


def test_an_adapter_that_just_left_its_replica(stack: Stack, acme: Customer) -> None:
    absent = {"message": "no", "type": "invalid_request_error", "param": "model"}
    behave(stack, status=404, error=absent | {"code": "model_not_found"})
    with pytest.raises(openai.InternalServerError) as caught:
        acme.client().chat.completions.create(**BODY)  # type: ignore[call-overload]
    # Never "no such model" for one that exists, and never the base model's answer.
    assert (caught.value.status_code, caught.value.code) == (503, "adapter_loading")
    assert caught.value.response.headers["retry-after"] == "1"


def test_an_error_inside_the_stream(stack: Stack, acme: Customer) -> None:
    behave(stack, error_after=2)
    with pytest.raises(openai.APIError) as caught:
        list(stream(acme))
    assert caught.value.code == "non_finite_logits"
    [row] = acme.usage(1)
    assert (row.status, row.error_code) == ("failed", "non_finite_logits")
    assert row.completion_tokens == 2


def test_no_resident_replica(stack: Stack, acme: Customer) -> None:
    digest = stack.activate(acme, "homeless")
    for replica in stack.replicas:
        replica.digests.discard(digest)
    started = time.monotonic()
    with pytest.raises(openai.InternalServerError) as caught:
        acme.client().chat.completions.create(model="homeless", messages=MESSAGES)  # type: ignore[arg-type]
    assert (caught.value.status_code, caught.value.code) == (503, "adapter_loading")
    assert "being loaded" in caught.value.message
    assert time.monotonic() - started < 5
    assert acme.has_no_usage()


def test_a_version_that_became_resident_a_moment_ago(stack: Stack, acme: Customer) -> None:
    for number in range(1, 6):
        digest = stack.activate(acme, "fresh", number)
        answer = acme.client().chat.completions.create(model=f"fresh@{number}", messages=MESSAGES)  # type: ignore[arg-type]
        assert answer.system_fingerprint == digest


def leave_after(
    customer: Customer, num_frames: int, is_running: Callable[[], int], is_reset: bool = False
) -> None:
    """A client whose connection is gone after some frames, closed or reset."""
    where = urlsplit(customer.web.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=20)
    headers = {"authorization": f"Bearer {customer.api_key}"}
    body = json.dumps(BODY | {"stream": True, "max_tokens": 400})
    connection.request("POST", "/v1/chat/completions", body, headers)
    wait_for("the generation", is_running)
    if is_reset:
        # Closed with no time to linger, a socket sends RST.
        now = struct.pack("ii", 1, 0)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
    if num_frames:
        answer = connection.getresponse()
        for _ in range(2 * num_frames):
            answer.readline()
        answer.close()
    connection.close()


@pytest.mark.case("C104")
@pytest.mark.case("C121")
@pytest.mark.parametrize("is_reset", [False, True])
def test_a_client_that_leaves_its_stream(stack: Stack, is_reset: bool) -> None:
    customer = stack.make_customer(max_concurrency=1, tokens_per_minute=2000)
    stack.activate(customer, "support-bot")
    behave(stack, tokens=LONG, token_interval_s=0.02)
    leave_after(customer, 10, lambda: num_running(stack), is_reset)
    left_at = time.monotonic()
    wait_for("the abort", lambda: not num_running(stack), timeout_s=5)
    assert time.monotonic() - left_at < 2
    [row] = customer.usage(1)
    assert (row.status, row.prompt_tokens) == ("cancelled", PROMPT_TOKENS)
    assert row.completion_tokens and 8 <= row.completion_tokens < 100
    assert row.cost > 0
    # One at a time, and 2000 tokens a minute, of which the first alone had reserved 550.
    behave(stack)
    for _ in range(2):
        answer = customer.client().chat.completions.with_raw_response.create(
            **BODY,  # type: ignore[arg-type]
            max_tokens=5,
        )
    used = 2000 - int(answer.headers["x-ratelimit-remaining-tokens"])
    assert used < 600, "the first request's hold was not given back"


@pytest.mark.case("C121")
def test_a_client_that_leaves_before_the_first_token(stack: Stack) -> None:
    customer = stack.make_customer(max_concurrency=1)
    stack.activate(customer, "support-bot")
    behave(stack, silent_s=30.0)
    leave_after(customer, 0, lambda: num_running(stack))
    wait_for("the abort", lambda: not num_running(stack), timeout_s=5)
    [row] = customer.usage(1)
    assert (row.status, row.cost, row.completion_tokens) == ("cancelled", Decimal(0), None)
    behave(stack)
    customer.client().chat.completions.create(**BODY)  # type: ignore[call-overload]


@pytest.mark.case("C104")
def test_many_that_leave_at_once(stack: Stack, acme: Customer) -> None:
    behave(stack, tokens=LONG, token_interval_s=0.02)
    for _ in range(15):
        leave_after(acme, 2, lambda: num_running(stack))
    wait_for("the aborts", lambda: not num_running(stack))
    rows = acme.usage(15)
    assert [row.status for row in rows] == ["cancelled"] * 15
    assert metric(stack.web, "grafthouse_open_streams") == 0


def test_frames_come_as_they_are_made(stack: Stack, acme: Customer) -> None:
    behave(stack, tokens=["a", "b", "c", "d"], token_interval_s=0.15)
    seen: list[float] = []
    for _ in stream(acme):
        seen.append(time.monotonic())
    # Four tokens, each 150 ms after the other: a buffered stream would come at once.
    assert seen[-1] - seen[0] > 0.4


def test_nothing_is_served_by_the_base_in_an_adapters_place(stack: Stack, acme: Customer) -> None:
    behave(stack, status=404, error={"message": "no", "code": "model_not_found"})
    with pytest.raises(openai.InternalServerError):
        acme.client().chat.completions.create(**BODY)  # type: ignore[call-overload]
    sent = [body["model"] for replica in stack.replicas for body in replica.bodies]
    assert sent and BASE_MODEL not in sent and "tiny" not in sent
