"""/v1/chat/completions and /v1/completions through the official client: what a tenant gets."""

from decimal import Decimal

import pytest

from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import CACHED_TOKENS, PROMPT_TOKENS, Behaviour
from tests.gateway.live import BASE_MODEL

MESSAGES = [{"role": "user", "content": "Hi"}]
TEXT = "Hello world! ✓"


def test_it_works(acme: Customer) -> None:
    answer = acme.client().chat.completions.create(model="support-bot", messages=MESSAGES)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "support-bot@1"
    assert answer.usage and answer.usage.total_tokens == PROMPT_TOKENS + 5


def test_the_answer_carries_the_digest(stack: Stack, acme: Customer) -> None:
    digest = stack.activate(acme, "house-style", 4)
    answer = acme.client().chat.completions.create(model="house-style", messages=MESSAGES)
    assert (answer.model, answer.system_fingerprint) == ("house-style@4", digest)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-") and "replica" not in answer.id


def test_a_stream(acme: Customer) -> None:
    stream = acme.client().chat.completions.create(
        model="support-bot", messages=MESSAGES, stream=True
    )
    chunks = list(stream)
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == TEXT
    assert {one.model for one in chunks} == {"support-bot@1"}
    assert len({one.id for one in chunks}) == 1
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.case("C92")
def test_usage_in_a_stream_only_when_asked(acme: Customer) -> None:
    client = acme.client()
    plain = client.chat.completions.with_raw_response.create(
        model="support-bot", messages=MESSAGES, stream=True
    )
    frames = [line for line in plain.http_response.iter_lines() if line.startswith("data: {")]
    assert frames and not any('"usage"' in frame or '"choices":[]' in frame for frame in frames)
    asked = list(
        client.chat.completions.create(
            model="support-bot",
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert [one.usage for one in asked[:-1]] == [None] * (len(asked) - 1)
    assert asked[-1].choices == []
    usage = asked[-1].usage
    assert usage and (usage.prompt_tokens, usage.completion_tokens) == (PROMPT_TOKENS, 5)
    assert usage.prompt_tokens_details
    assert usage.prompt_tokens_details.cached_tokens == CACHED_TOKENS


@pytest.mark.case("C94")
@pytest.mark.parametrize("is_stream", [False, True])
def test_n_choices(acme: Customer, is_stream: bool) -> None:
    client = acme.client()
    texts = ["", "", ""]
    if is_stream:
        stream = client.chat.completions.create(
            model="support-bot", messages=MESSAGES, n=3, stream=True
        )
        for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
    else:
        answer = client.chat.completions.create(model="support-bot", messages=MESSAGES, n=3)
        texts = [choice.message.content or "" for choice in answer.choices]
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert texts == [TEXT] * 3
    assert acme.usage(1)[-1].completion_tokens == 15


@pytest.mark.case("C97")
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_either_name_caps(stack: Stack, acme: Customer, name: str) -> None:
    answer = acme.client().chat.completions.create(
        model="support-bot", messages=MESSAGES, extra_body={name: 2}
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content == "Hello wor"
    sent = [body for replica in stack.replicas for body in replica.bodies][-1]
    assert sent["max_tokens"] == 2 and "max_completion_tokens" not in sent


def test_completions(acme: Customer) -> None:
    answer = acme.client().completions.create(model="support-bot", prompt="Once", max_tokens=3)
    assert answer.choices[0].text == "Hello world"
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    stream = acme.client().completions.create(model="support-bot", prompt="Once", stream=True)
    assert "".join(one.choices[0].text for one in stream) == TEXT


def test_the_base_model(acme: Customer) -> None:
    answer = acme.client().chat.completions.create(model=BASE_MODEL, messages=MESSAGES)
    assert (answer.model, answer.system_fingerprint) == (BASE_MODEL, "base")


@pytest.mark.parametrize("is_stream", [False, True])
def test_what_is_sent_to_the_replica(stack: Stack, acme: Customer, is_stream: bool) -> None:
    """Always a stream; of a plain answer nobody reads each token, so many come in one frame."""
    digest = stack.activate(acme, "wire")
    answer = acme.client().chat.completions.create(
        model="wire",
        messages=MESSAGES,
        temperature=0.5,
        stream=is_stream,
        extra_body={"cache_salt": "mine", "request_id": "x", "top_p": None},
    )
    if is_stream:
        assert len(list(answer)) > 1
    interval = {} if is_stream else {"stream_interval": 32}
    sent = [body for replica in stack.replicas for body in replica.bodies][-1]
    assert sent == {
        "model": digest,
        "messages": MESSAGES,
        "temperature": 0.5,
        "max_tokens": 512,
        "cache_salt": acme.tenant.cache_salt,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True} | interval,
    }


def test_lora_path_as_the_seed_has_it(stack: Stack, acme: Customer) -> None:
    client = acme.client()
    by_path = client.chat.completions.create(
        model=BASE_MODEL, messages=MESSAGES, extra_body={"lora_path": "support-bot"}
    )
    assert by_path.model == "support-bot@1"
    both = client.chat.completions.create(
        model="support-bot", messages=MESSAGES, extra_body={"lora_path": "support-bot@1"}
    )
    assert both.model == "support-bot@1"


def test_a_pinned_version(stack: Stack, acme: Customer) -> None:
    old = stack.activate(acme, "pinned", 1)
    new = stack.activate(acme, "pinned", 2)
    client = acme.client()
    answers = [
        client.chat.completions.create(model=name, messages=MESSAGES)
        for name in ("pinned", "pinned@1", "pinned@2")
    ]
    assert [one.system_fingerprint for one in answers] == [new, old, new]
    assert [one.model for one in answers] == ["pinned@2", "pinned@1", "pinned@2"]


@pytest.mark.case("C126")
def test_the_usage_row(stack: Stack, acme: Customer) -> None:
    digest = stack.activate(acme, "billed", 7)
    acme.client().chat.completions.create(model="billed", messages=MESSAGES)
    [row] = acme.usage(1)
    counts = (row.prompt_tokens, row.cached_tokens, row.completion_tokens)
    assert counts == (PROMPT_TOKENS, CACHED_TOKENS, 5)
    # (8 × 2.50 + 4 × 1.25 + 5 × 10.00) / 1e6
    assert row.cost == Decimal("0.000075")
    assert (row.status, row.adapter, row.version, row.digest) == ("finished", "billed", 7, digest)
    assert row.replica in {replica.url for replica in stack.replicas}
    assert row.endpoint == "chat.completions" and row.ended_at is not None


def test_every_stream_is_one_row(acme: Customer) -> None:
    client = acme.client()
    for _ in range(3):
        list(client.chat.completions.create(model=BASE_MODEL, messages=MESSAGES, stream=True))
    rows = acme.usage(3)
    assert [row.status for row in rows] == ["finished"] * 3
    assert len({row.request_id for row in rows}) == 3


@pytest.mark.case("C99")
def test_our_default_limit_does_not_refuse_a_prompt_that_fits(stack: Stack, acme: Customer) -> None:
    refusal = {
        "message": "This model's maximum context length is 2048 tokens.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    for replica in stack.replicas:
        replica.behaviour = Behaviour(status=400, error=refusal, refuses_limits=True)
    answer = acme.client().chat.completions.create(model="support-bot", messages=MESSAGES)
    assert answer.choices[0].message.content == TEXT


def test_models(stack: Stack, acme: Customer) -> None:
    stack.activate(acme, "another", 3)
    client = acme.client()
    ids = [one.id for one in client.models.list()]
    assert ids == [BASE_MODEL, "another", "support-bot"]
    for name in [*ids, "another@3"]:
        assert client.models.retrieve(name).id == name
