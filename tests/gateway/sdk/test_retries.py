"""The SDK's own retries: told when by us, each a request of its own."""

import threading
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import openai
import pytest

from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import Behaviour
from tests.gateway.live import BASE_MODEL, Web, metric, wait_for
from tests.gateway.sdk.test_endings import behave, num_running

MESSAGES: list[Any] = [{"role": "user", "content": "Hi"}]
CHAT: dict[str, Any] = {"model": BASE_MODEL, "messages": MESSAGES, "max_tokens": 5}


def num_requests(web: Web, status: str = "4xx") -> float:
    name = f'grafthouse_requests_total{{route="chat/completions",status="{status}"}}'
    try:
        return metric(web, name)
    except IndexError:
        return 0.0


def tries(stack: Stack, customer: Customer, call: Callable[[openai.OpenAI], object]) -> float:
    """How often a client that may try three times asked before it raised."""
    before = num_requests(stack.web), num_requests(stack.web, "5xx")
    with pytest.raises(openai.APIStatusError):
        call(customer.client(max_retries=2))
    after = num_requests(stack.web), num_requests(stack.web, "5xx")
    return sum(after) - sum(before)


@pytest.mark.case("C106")
def test_what_waiting_does_not_mend_is_asked_once(stack: Stack) -> None:
    """A spent budget, a request larger than its limit, and what is wrong by itself."""

    def chat(client: openai.OpenAI) -> object:
        return client.chat.completions.create(**CHAT)

    poor = stack.make_customer(monthly_budget=Decimal("0.000001"))
    assert tries(stack, poor, chat) == 1
    assert tries(stack, stack.make_customer(tokens_per_minute=10), chat) == 1
    assert tries(stack, stack.make_customer(scopes=("usage",)), chat) == 1
    customer = stack.make_customer()
    absent = CHAT | {"model": "nope"}
    assert tries(stack, customer, lambda client: client.chat.completions.create(**absent)) == 1
    assert all(one.has_no_usage() for one in (poor, customer))


@pytest.mark.case("C106")
def test_a_limit_is_waited_for_as_told(stack: Stack) -> None:
    """While another request runs there is no place; a second later there is."""
    behave(stack, tokens=["x"] * 6, token_interval_s=0.2)
    customer = stack.make_customer(max_concurrency=1)
    first = customer.client().chat.completions.create(**CHAT | {"max_tokens": 6}, stream=True)
    next(iter(first))
    reading = threading.Thread(target=lambda: list(first))
    reading.start()
    before, asked_at = num_requests(stack.web), time.monotonic()
    customer.client(max_retries=2).chat.completions.create(**CHAT | {"max_tokens": 1})
    reading.join()
    assert num_requests(stack.web) - before in {1, 2}
    # What retry-after-ms says; by itself the SDK waits half a second at most.
    assert time.monotonic() - asked_at >= 1.0
    assert [row.status for row in customer.usage(2)] == ["finished"] * 2


def test_an_adapter_that_is_loaded_meanwhile(stack: Stack, acme: Customer) -> None:
    digest = stack.activate(acme, "fresh")
    for replica in stack.replicas:
        replica.digests.discard(digest)

    def load() -> None:
        for replica in stack.replicas:
            replica.digests.add(digest)

    # The gateway itself waits for a second.
    loading = threading.Timer(1.5, load)
    loading.start()
    asked = CHAT | {"model": "fresh"}
    answer = acme.client(max_retries=2).chat.completions.create(**asked)
    loading.join()
    assert answer.system_fingerprint == digest
    assert len(acme.usage(1)) == 1


@pytest.mark.case("C123")
@pytest.mark.case("C132")
@pytest.mark.parametrize("behaviour", [{"error_after": 2}, {"die_after": 2}])
def test_each_try_that_failed_is_a_row_and_free(
    stack: Stack, acme: Customer, behaviour: dict[str, Any]
) -> None:
    """None of them delivered anything; nothing is asked twice under one id."""
    behave(stack, token_interval_s=0.05, **behaviour)
    num_tries = tries(
        stack, acme, lambda client: client.chat.completions.create(**CHAT, timeout=30)
    )
    assert num_tries == 3
    rows = acme.usage(3)
    assert {(row.status, row.completion_tokens, row.cost) for row in rows} == {("failed", None, 0)}
    assert len({row.request_id for row in rows}) == 3


@pytest.mark.case("C123")
def test_a_plain_answer_that_starts_over_is_asked_once(stack: Stack, acme: Customer) -> None:
    """By any client: the gateway itself goes to the other replica, and one answer is billed."""
    behave(stack, token_interval_s=0.05)
    dying = iter(stack.replicas)
    for number in range(4):
        stack.activate(acme, f"bot-{number}")
        asked = CHAT | {"model": f"bot-{number}"}
        first = next(dying, stack.replicas[0])
        first.behaviour = Behaviour(die_after=2, token_interval_s=0.05)
        before = num_requests(stack.web, "2xx")
        answer = acme.client(max_retries=2).chat.completions.create(**asked)
        assert answer.choices[0].message.content == "Hello world! ✓"
        assert num_requests(stack.web, "2xx") == before + 1
        first.behaviour = Behaviour()
    assert {(row.status, row.completion_tokens) for row in acme.usage(4)} == {("finished", 5)}


def test_replicas_that_come_back_while_a_plain_request_waits(stack: Stack, acme: Customer) -> None:
    """A retry comes when told, two seconds later, and finds them."""
    behave(stack, die_after=2, token_interval_s=0.05)
    mending = threading.Timer(1.0, lambda: behave(stack))
    mending.start()
    answer = acme.client(max_retries=2).chat.completions.create(**CHAT)
    mending.join()
    assert answer.choices[0].message.content == "Hello world! ✓"
    rows = acme.usage(2)
    assert [(row.status, row.cost > 0) for row in rows] == [("failed", False), ("finished", True)]


def test_a_stream_that_broke_is_not_tried_again(stack: Stack, acme: Customer) -> None:
    behave(stack, die_after=2, token_interval_s=0.05)
    with pytest.raises(openai.APIError):
        list(acme.client(max_retries=2).chat.completions.create(**CHAT, stream=True))
    assert len(acme.usage(1)) == 1


def test_a_client_that_gave_up_waiting_asks_again(stack: Stack, acme: Customer) -> None:
    """Its first request is cancelled, not run beside the second."""
    behave(stack, silent_s=30.0)

    def mend() -> None:
        wait_for("the first request", lambda: num_running(stack))
        behave(stack)

    mending = threading.Thread(target=mend)
    mending.start()
    acme.client(max_retries=1, timeout=1.0).chat.completions.create(**CHAT)
    mending.join()
    assert [row.status for row in acme.usage(2)] == ["cancelled", "finished"]
