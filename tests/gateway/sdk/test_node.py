"""The official Node client: its answers, every class of failure, streams that end badly."""

import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import PROMPT_TOKENS
from tests.gateway.live import BASE_MODEL, wait_for
from tests.gateway.sdk.node import Node, Outcome
from tests.gateway.sdk.test_endings import LONG, behave, num_running, wait_for_abort
from tests.gateway.sdk.test_errors import BUSY, INVALID
from tests.gateway.sdk.test_retries import num_requests

MESSAGES = [{"role": "user", "content": "Hi there"}]
CHAT: dict[str, Any] = {"model": BASE_MODEL, "messages": MESSAGES, "max_tokens": 400}
GREEDY = {"model": "bot", "max_tokens": 6, "temperature": 0, "ignore_eos": True}
CREATE = "chat.completions.create"


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.kill()


def texts(outcome: Outcome) -> str:
    choices = [choice for chunk in outcome.seen for choice in chunk["choices"]]
    return "".join(one["delta"].get("content") or "" for one in choices)


def thrown(outcome: Outcome) -> tuple[Any, ...]:
    """(class, status, type, param, code)"""
    assert outcome.error is not None, outcome
    return tuple(outcome.error.get(key) for key in ("name", "status", "type", "param", "code"))


def test_answers_of_the_engine(node: Node, customer: Customer) -> None:
    body = GREEDY | {"messages": MESSAGES}
    whole = node.ask(customer, CREATE, body | {"logprobs": True, "n": 2})
    assert whole.requestID == whole.ownID == whole.value["id"].removeprefix("chatcmpl-")
    text = whole.value["choices"][0]["message"]["content"]
    assert [len(one["logprobs"]["content"]) for one in whole.value["choices"]] == [6, 6]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = node.ask(customer, CREATE, body | options, read="stream")
    assert texts(streamed) == text
    assert streamed.seen[-1]["choices"] == []
    assert streamed.seen[-1]["usage"]["completion_tokens"] == 6
    helped = node.ask(customer, CREATE, body | {"stream": True}, read="helper")
    assert "".join(helped.seen) == helped.value["choices"][0]["message"]["content"] == text
    scored = {"prompt": "Hi", "echo": True, "logprobs": 1, "max_tokens": 0}
    echoed = node.ask(customer, "completions.create", GREEDY | scored)
    assert echoed.value["choices"][0]["text"] == "Hi"
    assert echoed.value["choices"][0]["logprobs"]["token_logprobs"][0] is None
    parsed = node.ask(customer, CREATE, body | {"max_tokens": 200, "seed": 1}, read="parse")
    assert parsed.value["kind"] in {"desk lamp", "mug"}
    listed = node.ask(customer, "models.list")
    assert [one["id"] for one in listed.value["data"]] == [BASE_MODEL, "bot"]
    assert node.ask(customer, "models.retrieve", "bot@1").value["id"] == "bot@1"
    assert {row.status for row in customer.usage(5)} == {"finished"}


def test_refusals(node: Node, stack: Stack, acme: Customer) -> None:
    nobody = Customer(stack.web, acme.tenant, "gh-nope")
    unauthenticated = ("AuthenticationError", 401, INVALID, None, "invalid_api_key")
    assert thrown(node.ask(nobody, "models.list")) == unauthenticated
    may_not = stack.make_customer(scopes=("usage",))
    forbidden = ("PermissionDeniedError", 403, INVALID, None, "permission_denied")
    assert thrown(node.ask(may_not, CREATE, CHAT)) == forbidden
    absent = ("NotFoundError", 404, INVALID, "model", "model_not_found")
    assert thrown(node.ask(acme, CREATE, CHAT | {"model": "no"}, read="stream")) == absent
    assert thrown(node.ask(acme, "models.retrieve", "org/bot@1")) == absent
    not_found = ("NotFoundError", 404, INVALID, None, "not_found")
    assert thrown(node.ask(acme, "responses.create", {"model": "no", "input": "Hi"})) == not_found
    bad = node.ask(acme, CREATE, CHAT | {"max_tokens": 0})
    assert thrown(bad) == ("BadRequestError", 400, INVALID, "max_tokens", "invalid_request")
    assert bad.error and len(bad.error["requestID"]) == 32
    large = CHAT | {"messages": [{"role": "user", "content": "x" * (5 << 20)}]}
    too_large = ("APIError", 413, INVALID, None, "request_too_large")
    assert thrown(node.ask(acme, CREATE, large)) == too_large
    assert acme.has_no_usage()


def test_an_over_long_prompt(node: Node, customer: Customer) -> None:
    long = {"model": "bot", "messages": [{"role": "user", "content": "x" * 3000}]}
    wanted = ("BadRequestError", 400, INVALID, "messages", "context_length_exceeded")
    for is_stream in (False, True):
        assert thrown(node.ask(customer, CREATE, long | {"stream": is_stream})) == wanted


def test_failing_replicas(node: Node, stack: Stack, acme: Customer) -> None:
    stream = CHAT | {"stream": True}

    def failure(**behaviour: Any) -> tuple[Any, ...]:
        behave(stack, **behaviour)
        return thrown(node.ask(acme, CREATE, stream, read="stream"))

    name, kind = "InternalServerError", "server_error"
    behave(stack, die_after=3, token_interval_s=0.05)
    whole = thrown(node.ask(acme, CREATE, CHAT))
    assert whole == (name, 503, kind, None, "no_replica")
    assert failure(status=503, error=BUSY) == (name, 503, kind, None, "overloaded")
    # The last: who answers with another version is doubted for a while.
    assert failure(fingerprint="e" * 64) == (name, 503, kind, None, "version_mismatch")


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [({"die_after": 3}, "replica_failed"), ({"error_after": 3}, "non_finite_logits")],
)
def test_an_error_inside_the_stream(
    node: Node, stack: Stack, acme: Customer, behaviour: dict[str, Any], code: str
) -> None:
    """The client knows no status then: the head said 200."""
    behave(stack, token_interval_s=0.05, **behaviour)
    outcome = node.ask(acme, CREATE, CHAT | {"stream": True}, read="stream")
    assert texts(outcome) == "Hello world"
    assert thrown(outcome) == ("APIError", None, "server_error", None, code)
    [row] = acme.usage(1)
    assert (row.status, row.completion_tokens) == ("failed", 3)


@pytest.mark.case("C106")
def test_limits(node: Node, stack: Stack) -> None:
    """A spent budget is asked for once, a place that comes free is waited for."""
    behave(stack, tokens=["x"] * 6, token_interval_s=0.2)
    few = stack.make_customer(requests_per_minute=0)
    limited = ("RateLimitError", 429, "requests", None, "rate_limit_exceeded")
    assert thrown(node.ask(few, CREATE, CHAT)) == limited
    poor = stack.make_customer(monthly_budget=Decimal("0.000001"))
    before = num_requests(stack.web)
    spent = ("RateLimitError", 429, "insufficient_quota", None, "insufficient_quota")
    assert thrown(node.ask(poor, CREATE, CHAT, client={"maxRetries": 2})) == spent
    assert num_requests(stack.web) - before == 1

    one_at_once = stack.make_customer(max_concurrency=1)
    first = one_at_once.client().chat.completions.create(**CHAT, stream=True)
    next(iter(first))
    reading = threading.Thread(target=lambda: list(first))
    reading.start()
    asked_at = time.monotonic()
    second = node.ask(one_at_once, CREATE, CHAT, client={"maxRetries": 2})
    reading.join()
    assert second.value and time.monotonic() - asked_at >= 1.0
    assert len(one_at_once.usage(2)) == 2


@pytest.mark.case("C104")
@pytest.mark.parametrize("is_breaking", [False, True])
def test_a_stream_that_is_left(node: Node, stack: Stack, acme: Customer, is_breaking: bool) -> None:
    """By its AbortController, or by leaving the loop."""
    behave(stack, **LONG)
    body, leave = CHAT | {"stream": True}, {"leaveAfter": 10, "isBreaking": is_breaking}
    outcome = node.ask(acme, CREATE, body, read="stream", **leave)
    assert outcome.error is None and len(outcome.seen) == 10
    wait_for_abort(stack)
    [row] = acme.usage(1)
    assert (row.status, row.prompt_tokens) == ("cancelled", PROMPT_TOKENS)
    assert row.completion_tokens and 9 <= row.completion_tokens < 100


@pytest.mark.case("C104")
def test_an_answer_that_is_not_waited_for(node: Node, stack: Stack, acme: Customer) -> None:
    """Aborted, timed out and tried again, or cut off with its process."""
    behave(stack, silent_s=30.0)
    aborted = node.ask(acme, CREATE, CHAT, read="abortAtOnce", leaveAfter=1000)
    assert aborted.error and aborted.error["name"] == "APIUserAbortError"
    wait_for_abort(stack)
    timed_out = node.ask(acme, CREATE, CHAT, client={"timeout": 1000, "maxRetries": 1})
    assert timed_out.error and timed_out.error["name"] == "APIConnectionTimeoutError"
    wait_for_abort(stack)
    other = Node()
    other.send(acme, CREATE, CHAT | {"stream": True}, read="stream")
    wait_for("the generation", lambda: num_running(stack))
    other.kill()
    wait_for_abort(stack)
    assert [(row.status, row.cost) for row in acme.usage(4)] == [("cancelled", Decimal(0))] * 4
