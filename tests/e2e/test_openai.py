"""What a demo tenant sees with the stock `openai` client and nothing of ours but URL and key: each
as OpenAI answers it.
"""

import time
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from tests.e2e.house import Member, wait_for
from tests.gateway.sdk.shapes import strict

pytestmark = [pytest.mark.demo, pytest.mark.slow]

COUNT: list[Any] = [{"role": "user", "content": "Count from one to ten, in words."}]
ORDER: list[Any] = [{"role": "user", "content": "12 desk lamps for order 55321 to Oslo. Ann"}]
MAX_TOKENS = 24


class Order(BaseModel):
    order_number: int
    priority: Literal["low", "high"]


@pytest.fixture(scope="module")
def client(acme: Member) -> Iterator[openai.OpenAI]:
    with acme.client() as client:
        yield client


@pytest.fixture(scope="module")
def base(acme: Member) -> str:
    answer = acme.session.get(f"{acme.url}/api/session", timeout=30).json()
    return str(answer["base_model"])


@pytest.fixture(scope="module")
def greedy(acme: Member, base: str) -> dict[str, Any]:
    """A request whose answer is the same each time."""
    return {"model": base, "messages": COUNT, "max_tokens": MAX_TOKENS, "temperature": 0}


def test_chat_stream_n_and_logprobs(client: openai.OpenAI, greedy: dict[str, Any]) -> None:
    """One answer four times over: whole, streamed, twice in one, and by its tokens."""
    create = client.chat.completions.create
    raw = client.chat.completions.with_raw_response.create(**greedy)
    whole = strict(ChatCompletion, raw.content)
    text = whole.choices[0].message.content
    assert text and whole.choices[0].finish_reason == "length"
    assert whole.usage and whole.usage.completion_tokens == MAX_TOKENS
    assert raw.headers["x-request-id"] and raw.headers["x-ratelimit-remaining-tokens"]

    chunks = list(create(**greedy, stream=True, stream_options={"include_usage": True}))
    assert "".join(one.choices[0].delta.content or "" for one in chunks[:-1]) == text
    assert chunks[-1].choices == [] and chunks[-1].usage
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens

    twice = create(**greedy, n=2, logprobs=True, top_logprobs=2)
    assert [one.index for one in twice.choices] == [0, 1]
    assert [one.message.content for one in twice.choices] == [text, text]
    assert twice.usage and twice.usage.completion_tokens == 2 * MAX_TOKENS
    assert twice.usage.prompt_tokens == whole.usage.prompt_tokens
    for choice in twice.choices:
        assert choice.logprobs and choice.logprobs.content
        assert "".join(one.token for one in choice.logprobs.content) == text
        assert all(one.top_logprobs[0].token == one.token for one in choice.logprobs.content)


def test_stop(client: openai.OpenAI, greedy: dict[str, Any]) -> None:
    create = client.chat.completions.create
    text = create(**greedy).choices[0].message.content or ""
    stop = text[len(text) // 2 :][:5]
    stopped = create(**greedy, stop=[stop, "no such words"])
    assert stopped.choices[0].message.content == text[: text.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"


def test_a_json_schema(client: openai.OpenAI, acme: Member) -> None:
    answer = client.chat.completions.parse(
        model=acme.adapters[0], messages=ORDER, response_format=Order, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed, Order)
    assert answer.choices[0].finish_reason == "stop"


def refusal(member: Member, api_key: str, **body: Any) -> tuple[Any, ...]:
    """(class, status, type, param, code), the same for a stream."""
    found = []
    for is_stream in (False, True):
        client = openai.OpenAI(base_url=f"{member.url}/v1", api_key=api_key, max_retries=0)
        with client, pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(**body, stream=is_stream)
        error = caught.value
        assert isinstance(error.body, dict)
        assert list(error.body) == ["message", "type", "param", "code"] and error.request_id
        found.append((type(error), error.status_code, error.type, error.param, error.code))
    assert found[0] == found[1]
    return found[0]


INVALID = "invalid_request_error"


def test_refusals(acme: Member, greedy: dict[str, Any]) -> None:
    wrong_key = (openai.AuthenticationError, 401, INVALID, None, "invalid_api_key")
    assert refusal(acme, "gh-wrong", **greedy) == wrong_key
    wrong_model = (openai.NotFoundError, 404, INVALID, "model", "model_not_found")
    assert refusal(acme, acme.api_key, **greedy | {"model": "nope"}) == wrong_model
    long = greedy | {"messages": [{"role": "user", "content": "word " * 9000}]}
    too_long = (openai.BadRequestError, 400, INVALID, "messages", "context_length_exceeded")
    assert refusal(acme, acme.api_key, **long) == too_long
    hot = (openai.BadRequestError, 400, INVALID, "temperature", "invalid_request")
    assert refusal(acme, acme.api_key, **greedy | {"temperature": "hot"}) == hot


def make_key(member: Member, **limits: Any) -> str:
    answer = member.call(
        "POST", "keys/", json={"name": "limited", "scopes": ["inference"], **limits}
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["secret"])


def test_a_minutes_limit_and_a_spent_budget(acme: Member, greedy: dict[str, Any]) -> None:
    key = make_key(acme, requests_per_minute=1)
    with openai.OpenAI(base_url=f"{acme.url}/v1", api_key=key) as client:
        client.chat.completions.create(**greedy | {"max_tokens": 1})
    limited = (openai.RateLimitError, 429, "requests", None, "rate_limit_exceeded")
    assert refusal(acme, key, **greedy) == limited
    spent = (openai.RateLimitError, 429, "insufficient_quota", None, "insufficient_quota")
    assert refusal(acme, make_key(acme, monthly_budget="0.00"), **greedy) == spent


def test_a_cancelled_stream(client: openai.OpenAI, acme: Member, greedy: dict[str, Any]) -> None:
    """It ends at once, and what it has produced is in the ledger."""
    endless = greedy | {"max_tokens": 1500, "extra_body": {"ignore_eos": True}}
    stream = client.chat.completions.create(**endless, stream=True)
    request_id = stream.response.headers["x-request-id"]
    for number, _ in enumerate(stream):
        if number == 5:
            break
    stream.close()
    closed_at = time.monotonic()

    def row() -> dict[str, Any] | None:
        rows = acme.get("usage/?limit=50")["results"]
        return next((one for one in rows if one["request_id"] == request_id), None)

    record = wait_for("the row", lambda: (found := row()) and found["ended_at"] and found, 10)
    assert time.monotonic() - closed_at < 5
    assert record["status"] == "cancelled" and record["prompt_tokens"] > 0
    assert 5 <= record["completion_tokens"] < 200 and float(record["cost"]) > 0
