"""Quota as a client of the official SDK meets it."""

import threading
from decimal import Decimal

import openai
import pytest

from tenants.audit import system
from tenants.keys import create_key
from tenants.models import BudgetNotice
from tenants.scope import tenant_scope
from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import Behaviour
from tests.gateway.live import metric, wait_for

BODY = {"model": "tiny-base", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}


def ask(customer: Customer, **fields: object) -> object:
    return customer.client().chat.completions.with_raw_response.create(**(BODY | fields))  # type: ignore[call-overload]


@pytest.mark.case("C106")
@pytest.mark.parametrize("is_stream", [False, True])
def test_requests_per_minute(stack: Stack, is_stream: bool) -> None:
    customer = stack.make_customer(requests_per_minute=2)
    for remaining in ("1", "0"):
        headers = ask(customer).headers  # type: ignore[attr-defined]
        assert headers["x-ratelimit-limit-requests"] == "2"
        assert headers["x-ratelimit-remaining-requests"] == remaining
    with pytest.raises(openai.RateLimitError) as caught:
        ask(customer, stream=is_stream)
    assert caught.value.code == "rate_limit_exceeded"
    headers = caught.value.response.headers
    assert 0 < int(headers["retry-after"]) <= 60
    assert 0 < int(headers["retry-after-ms"]) <= 60_000
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert len(headers["x-request-id"]) == 32
    # What was refused is no usage.
    assert len(customer.usage(2)) == 2


def test_tokens_per_minute(stack: Stack) -> None:
    customer = stack.make_customer(tokens_per_minute=100)
    with pytest.raises(openai.RateLimitError) as caught:
        ask(customer, max_tokens=90)
    assert caught.value.body["type"] == "tokens"  # type: ignore[index]
    assert caught.value.response.headers["x-should-retry"] == "false"


def test_a_spent_budget_is_not_retried(stack: Stack) -> None:
    customer = stack.make_customer(monthly_budget=Decimal("0.01"))
    client = customer.client(max_retries=2)
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(**(BODY | {"max_tokens": 2000}))  # type: ignore[call-overload]
    assert caught.value.code == "insufficient_quota"
    assert caught.value.response.headers["x-should-retry"] == "false"
    ask(customer)


def test_what_was_not_used_comes_back(stack: Stack) -> None:
    customer = stack.make_customer(tokens_per_minute=1000)
    # Each reserves some 700 tokens and uses 17.
    for _ in range(4):
        answer = ask(customer, max_tokens=500)
    remaining = int(answer.headers["x-ratelimit-remaining-tokens"])  # type: ignore[attr-defined]
    assert 0 < remaining < 1000 - 3 * 17


def limited_client(customer: Customer, **limits: int | Decimal) -> openai.OpenAI:
    """With another key of the customer, which has limits of its own."""
    made = create_key(system(customer.tenant.id), "ci", ["inference"], limits=limits)
    return customer.web.client(made.raw, max_retries=0)


def test_a_key_has_limits_beside_its_tenants(stack: Stack) -> None:
    """The tighter one is shown and answers, and names whose it is."""
    customer = stack.make_customer(requests_per_minute=3)
    client = limited_client(customer, requests_per_minute=1)
    answer = client.chat.completions.with_raw_response.create(**BODY)  # type: ignore[arg-type]
    assert answer.headers["x-ratelimit-limit-requests"] == "1"
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    with pytest.raises(openai.RateLimitError, match=r"Key 'ci \(gh-\w+\)': limit 1 requests per"):
        client.chat.completions.create(**BODY)  # type: ignore[call-overload]
    assert ask(customer).headers["x-ratelimit-remaining-requests"] == "1"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"tokens_per_day": 300}, "the limit of tokens per day is 300, used 17"),
        ({"tokens_per_month": 300}, "the limit of tokens per month is 300, used 17"),
        ({"daily_budget": Decimal("0.01")}, "the daily budget is 0.01, used 0.0000"),
        ({"monthly_budget": Decimal("0.01")}, "the monthly budget is 0.01, used 0.0000"),
    ],
)
def test_a_spent_day_or_month_of_a_key(
    stack: Stack, limits: dict[str, int | Decimal], message: str
) -> None:
    client = limited_client(stack.make_customer(), **limits)
    client.chat.completions.create(**BODY)  # type: ignore[call-overload]
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(**(BODY | {"max_tokens": 2000}))  # type: ignore[call-overload]
    assert caught.value.code == "insufficient_quota"
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert message in caught.value.message
    assert "It is renewed at 2" in caught.value.message


def test_half_a_month_is_said_once(stack: Stack) -> None:
    """By the gateway that settles: a row, and a count without a tenant's name."""
    customer = stack.make_customer(tokens_per_month=800)
    name = 'grafthouse_budget_notices_total{kind="tokens",percent="50"}'
    for replica in stack.replicas:
        replica.behaviour = Behaviour(tokens=["x"] * 450)
    ask(customer, max_tokens=500)
    for replica in stack.replicas:
        replica.behaviour = Behaviour()
    with tenant_scope(customer.tenant.id):
        wait_for("the notice", BudgetNotice.objects.exists)
        ask(customer)
        customer.usage(2)
        rows = list(BudgetNotice.objects.values_list("kind", "percent", "limit"))
    assert rows == [("tokens", 50, 800)]
    assert metric(stack.web, name) == 1


@pytest.mark.case("C132")
def test_a_refused_request_gives_everything_back(stack: Stack) -> None:
    customer = stack.make_customer(requests_per_minute=3, tokens_per_minute=1000, max_concurrency=1)
    error = {"message": "no", "type": "invalid_request_error", "param": "seed", "code": "x"}
    for replica in stack.replicas:
        replica.behaviour = Behaviour(status=400, error=error)
    for _ in range(5):
        with pytest.raises(openai.BadRequestError):
            ask(customer)
    for replica in stack.replicas:
        replica.behaviour = Behaviour()
    answer = ask(customer)
    assert answer.headers["x-ratelimit-remaining-requests"] == "2"  # type: ignore[attr-defined]


@pytest.mark.case("C133")
def test_never_more_than_the_limit_at_once(stack: Stack) -> None:
    customer = stack.make_customer(requests_per_minute=6)
    outcomes: list[str] = []

    def go() -> None:
        try:
            ask(customer)
            outcomes.append("served")
        except openai.RateLimitError:
            outcomes.append("refused")

    threads = [threading.Thread(target=go) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (outcomes.count("served"), outcomes.count("refused")) == (6, 18)


def test_concurrent_streams(stack: Stack) -> None:
    customer = stack.make_customer(max_concurrency=1)
    for replica in stack.replicas:
        replica.behaviour = Behaviour(tokens=["x"] * 100, token_interval_s=0.05)
    stream = customer.client().chat.completions.create(
        **(BODY | {"max_tokens": 100, "stream": True})  # type: ignore[call-overload]
    )
    next(iter(stream))
    with pytest.raises(openai.RateLimitError):
        ask(customer)
    stream.close()


def test_a_plans_weight_reaches_the_engines_queue(stack: Stack) -> None:
    customers = [stack.make_customer(weight=weight) for weight in (0.5, 1.0, 4.0)]
    for customer in customers:
        ask(customer)
    sent = {salt: weight for one in stack.replicas for salt, weight in one.weights.items()}
    assert [sent[c.tenant.cache_salt] for c in customers] == ["0.5", "1", "4"]
