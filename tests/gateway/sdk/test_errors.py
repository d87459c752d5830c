"""Each failure as the SDK raises it: class, status, and OpenAI's type, param and code."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from typing import Any

import openai
import pytest
from django.utils import timezone

from tenants.audit import system
from tenants.keys import create_key, revoke_key
from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import Behaviour
from tests.gateway.live import BASE_MODEL, ROOT_DIR

MESSAGES: list[Any] = [{"role": "user", "content": "Hi"}]
CHAT: dict[str, Any] = {"model": BASE_MODEL, "messages": MESSAGES, "max_tokens": 5}
Call = Callable[[openai.OpenAI], object]
INVALID = "invalid_request_error"
DOCUMENTED = (ROOT_DIR / "docs" / "errors.md").read_text()
BUSY = {"message": "full", "type": "server_error", "param": None, "code": "overloaded"}


def is_worth_waiting(error: openai.APIStatusError) -> bool:
    """A limit of time or place, or a replica that comes back."""
    is_limited = error.status_code == 429 and "x-should-retry" not in error.response.headers
    return is_limited or error.status_code == 503


def error_of(client: openai.OpenAI, call: Call) -> openai.APIStatusError:
    """What is raised; the envelope is whole and the request has an id."""
    with pytest.raises(openai.APIStatusError) as caught:
        call(client)
    error = caught.value
    assert isinstance(error.body, dict) and list(error.body) == ["message", "type", "param", "code"]
    assert error.body["message"] and error.request_id and len(error.request_id) == 32
    assert f"`{error.type}`" in DOCUMENTED and f"`{error.code}`" in DOCUMENTED
    assert str(error.status_code) in DOCUMENTED
    headers = error.response.headers
    assert headers["content-type"] == "application/json"
    if "retry-after" in headers:
        waits = int(headers["retry-after"]), int(headers["retry-after-ms"]) / 1000
        assert 0 <= waits[0] - waits[1] < 1 and 0 < waits[0] <= 60
    assert ("retry-after" in headers) == is_worth_waiting(error)
    return error


def named(error: openai.APIStatusError) -> tuple[str, int, str | None, str | None, str | None]:
    """(class, status, type, param, code)"""
    return type(error).__name__, error.status_code, error.type, error.param, error.code


def raised(
    client: openai.OpenAI, call: Call
) -> tuple[str, int, str | None, str | None, str | None]:
    return named(error_of(client, call))


def chat(is_stream: bool = False, **fields: Any) -> Call:
    return lambda client: client.chat.completions.create(**CHAT | fields, stream=is_stream)


CALLS: dict[str, Call] = {
    "chat": chat(),
    "stream": chat(is_stream=True),
    "completions": lambda client: client.completions.create(model=BASE_MODEL, prompt="Hi"),
    "list": lambda client: client.models.list(),
    "retrieve": lambda client: client.models.retrieve(BASE_MODEL),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_keys(stack: Stack, call: Call) -> None:
    """No key, a wrong, a revoked and an expired one; one that may not."""
    customer = stack.make_customer(scopes=("usage",))
    actor, past = system(customer.tenant.id), timezone.now() - timedelta(seconds=1)
    revoked = create_key(actor, "revoked", ["inference"])
    revoke_key(actor, revoked.row.public_id)
    expired = create_key(actor, "expired", ["inference"], expires_at=past)
    refused = ("AuthenticationError", 401, INVALID, None, "invalid_api_key")
    for key in ("x", "gh-nope", customer.api_key + "x", revoked.raw, expired.raw):
        assert raised(stack.web.client(key), call) == refused
    bare = stack.web.client("x", default_headers={"authorization": ""})
    assert raised(bare, call) == refused
    may_not = ("PermissionDeniedError", 403, INVALID, None, "permission_denied")
    assert raised(customer.client(), call) == may_not


ABSENT: dict[str, Call] = {
    "chat": chat(model="nope"),
    "stream": chat(is_stream=True, model="nope"),
    "path": chat(extra_body={"lora_path": "nope"}),
    "slash": chat(model="org/bot@1"),
    "completions": lambda client: client.completions.create(model="nope", prompt="Hi"),
    "retrieve": lambda client: client.models.retrieve("org/bot@1"),
}


@pytest.mark.case("C85")
@pytest.mark.parametrize("call", ABSENT.values(), ids=ABSENT)
def test_a_model_that_is_not_there(acme: Customer, call: Call) -> None:
    wanted = ("NotFoundError", 404, INVALID, "model", "model_not_found")
    assert raised(acme.client(), call) == wanted
    assert acme.has_no_usage()


def test_what_is_not_offered(acme: Customer) -> None:
    client = acme.client()
    calls: list[Call] = [
        lambda client: client.embeddings.create(model=BASE_MODEL, input="Hi"),
        lambda client: client.responses.create(model=BASE_MODEL, input="Hi"),
        lambda client: client.files.list(),
    ]
    for call in calls:
        assert raised(client, call) == ("NotFoundError", 404, INVALID, None, "not_found")
    not_allowed = ("APIStatusError", 405, INVALID, None, "method_not_allowed")
    assert raised(client, lambda client: client.models.delete("support-bot")) == not_allowed
    zipped = chat(extra_headers={"content-encoding": "gzip"})
    media_type = ("APIStatusError", 415, INVALID, None, "unsupported_media_type")
    assert raised(client, zipped) == media_type
    # Refused by the connection, before it is a request of any application's.
    long = chat(extra_headers={"x-note": "x" * 9000})
    assert raised(client, long) == ("APIStatusError", 431, INVALID, None, "headers_too_large")


@pytest.mark.case("C112")
def test_a_body_too_large(acme: Customer) -> None:
    large = chat(messages=[{"role": "user", "content": "x" * (5 << 20)}])
    wanted = ("APIStatusError", 413, INVALID, None, "request_too_large")
    assert raised(acme.client(), large) == wanted


@pytest.mark.case("C106")
@pytest.mark.parametrize("is_stream", [False, True])
def test_limits(stack: Stack, is_stream: bool) -> None:
    """At OpenAI the type is what ran out, and a spent budget has a type and code of its own."""
    call = chat(is_stream)
    wanted = ("RateLimitError", 429, "requests", None, "rate_limit_exceeded")
    few = stack.make_customer(requests_per_minute=1)
    few.client().chat.completions.create(**CHAT)
    assert raised(few.client(), call) == wanted
    none_at_once = stack.make_customer(max_concurrency=1)
    with running(stack, none_at_once):
        assert raised(none_at_once.client(), call) == wanted
    tokens = ("RateLimitError", 429, "tokens", None, "rate_limit_exceeded")
    assert raised(stack.make_customer(tokens_per_minute=10).client(), call) == tokens
    some = stack.make_customer(tokens_per_minute=200)
    some.client().chat.completions.create(**CHAT | {"max_tokens": 30})
    assert raised(some.client(), chat(is_stream, max_tokens=30)) == tokens
    spent = ("RateLimitError", 429, "insufficient_quota", None, "insufficient_quota")
    poor = stack.make_customer(monthly_budget=Decimal("0.000001"))
    assert raised(poor.client(), call) == spent


@contextmanager
def running(stack: Stack, customer: Customer) -> Iterator[None]:
    for replica in stack.replicas:
        replica.behaviour = Behaviour(token_interval_s=0.1, tokens=["x"] * 600)
    stream = customer.client().chat.completions.create(**CHAT | {"max_tokens": 600}, stream=True)
    next(iter(stream))
    yield
    stream.close()
    for replica in stack.replicas:
        replica.behaviour = Behaviour()


def server_error(status: int, code: str) -> tuple[str, int, str, None, str]:
    return "InternalServerError", status, "server_error", None, code


BROKEN: dict[str, tuple[dict[str, Any], int, str]] = {
    "busy": ({"status": 503, "error": BUSY}, 503, "overloaded"),
    "lost at once": ({"die_after": 0}, 503, "overloaded"),
    "no JSON": ({"is_malformed": True}, 503, "overloaded"),
    "a trace": ({"status": 500, "error": {"trace": "secret.py"}}, 500, "internal_error"),
    "another version": ({"fingerprint": "e" * 64}, 503, "version_mismatch"),
}


@pytest.mark.case("C114")
@pytest.mark.parametrize(("behaviour", "status", "code"), BROKEN.values(), ids=BROKEN)
def test_a_replica_that_fails_before_its_first_token(
    stack: Stack, acme: Customer, behaviour: dict[str, Any], status: int, code: str
) -> None:
    for is_stream in (False, True):
        for replica in stack.replicas:
            replica.behaviour = Behaviour(**behaviour)
        found = raised(acme.client(), chat(is_stream))
        assert found[1] == status and found == server_error(status, found[4] or "")
        # Two lost in a row may leave none that is ready.
        assert found[4] in {code, "no_replica"}


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_adapter_that_no_replica_holds(stack: Stack, is_stream: bool) -> None:
    customer = stack.make_customer(requests_per_minute=9)
    digest = stack.activate(customer, "homeless")
    for replica in stack.replicas:
        replica.digests.discard(digest)
    error = error_of(customer.client(), chat(is_stream, model="homeless"))
    assert named(error) == server_error(503, "adapter_loading")
    # It was admitted before, and knows what is left.
    assert error.response.headers["x-ratelimit-limit-requests"] == "9"


@pytest.mark.parametrize(
    ("behaviour", "status", "code"),
    [
        ({"die_after": 3, "token_interval_s": 0.05}, 503, "no_replica"),
        ({"error_after": 3}, 500, "non_finite_logits"),
    ],
)
def test_a_replica_that_fails_before_a_json_answer_is_whole(
    stack: Stack, acme: Customer, behaviour: dict[str, Any], status: int, code: str
) -> None:
    for replica in stack.replicas:
        replica.behaviour = Behaviour(**behaviour)
    assert raised(acme.client(), chat()) == server_error(status, code)
    # Its client has nothing of it.
    assert acme.usage(1)[0].cost == 0
