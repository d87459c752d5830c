"""/v1/chat/completions with the stock client, before the real engine."""

import itertools
from typing import Any

import openai
import pytest
from openai import OpenAI

from inference.server.vocabulary import BYTE_LEVEL
from tests.inference.server.conftest import Server

HI: list[Any] = [{"role": "user", "content": "hi there"}]
GREEDY: dict[str, Any] = {"messages": HI, "max_tokens": 24, "temperature": 0}
RUN_ON = {"ignore_eos": True}
# tests/tiny.py numbers the bytes by their stand-ins' order.
BYTES = [BYTE_LEVEL[symbol] for symbol in sorted(BYTE_LEVEL)]


def test_it_works(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", **GREEDY, extra_body=RUN_ON)
    choice = answer.choices[0]
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint == "base"
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert choice.logprobs is None
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 24


def test_an_adapter_answers_differently_and_says_its_digest(client: OpenAI, server: Server) -> None:
    plain = client.chat.completions.create(model="tiny", **GREEDY, extra_body=RUN_ON)
    by_model = client.chat.completions.create(model="red", **GREEDY, extra_body=RUN_ON)
    by_path = client.chat.completions.create(
        model="tiny", **GREEDY, extra_body=RUN_ON | {"lora_path": "red"}
    )
    digest = server.call("/v1/models/red").json["digest"]
    assert by_model.system_fingerprint == by_path.system_fingerprint == digest
    assert by_model.model == by_path.model == "red"
    assert by_model.choices[0].message.content == by_path.choices[0].message.content
    assert by_model.choices[0].message.content != plain.choices[0].message.content


@pytest.mark.case("C92")
def test_a_stream_joins_to_the_whole(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="red", **GREEDY, extra_body=RUN_ON)
    chunks = list(
        client.chat.completions.create(
            model="red",
            **GREEDY,
            extra_body=RUN_ON,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.case("C92")
def test_without_asking_there_is_no_usage_chunk(client: OpenAI) -> None:
    for chunk in client.chat.completions.create(model="tiny", **GREEDY, stream=True):
        assert len(chunk.choices) == 1
        assert "usage" not in chunk.model_fields_set


def test_continuous_usage_counts_every_token(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="red",
            **GREEDY,
            stream=True,
            extra_body=RUN_ON | {"stream_options": {"continuous_usage_stats": True}},
        )
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
    assert len(counts) == len(chunks)
    assert counts == sorted(counts)
    assert counts[-1] == 24


def test_the_second_time_the_prompt_is_cached(client: OpenAI) -> None:
    long: list[Any] = [{"role": "user", "content": "once upon a time " * 4}]
    salted = {"cache_salt": "one"}

    def cached(body: dict[str, str]) -> int:
        answer = client.chat.completions.create(
            model="red", messages=long, max_tokens=1, extra_body=body
        )
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    assert cached(salted) == 0
    assert cached(salted) > 0
    assert cached({"cache_salt": "two"}) == 0


@pytest.mark.case("C94")
def test_n_choices_each_with_index_role_and_end(client: OpenAI) -> None:
    """Peers sent index 0 for all choices, or counted one of them."""
    asked: dict[str, Any] = {"messages": HI, "max_tokens": 12, "temperature": 1, "seed": 1, "n": 3}
    whole = client.chat.completions.create(model="red", **asked, extra_body=RUN_ON)
    texts = [choice.message.content for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 36
    one = client.chat.completions.create(model="red", **(asked | {"n": 1}), extra_body=RUN_ON)
    assert one.usage is not None
    assert whole.usage.prompt_tokens == one.usage.prompt_tokens
    chunks = list(
        client.chat.completions.create(model="red", **asked, extra_body=RUN_ON, stream=True)
    )
    for index in range(3):
        mine = [c.choices[0] for c in chunks if c.choices[0].index == index]
        assert [c.delta.role for c in mine].count("assistant") == 1
        assert [c.finish_reason for c in mine if c.finish_reason] == ["length"]
        assert "".join(c.delta.content or "" for c in mine) == texts[index]


@pytest.mark.case("C95")
def test_logprobs(client: OpenAI) -> None:
    """Peers returned the legacy arrays on the chat endpoint."""
    asked = GREEDY | {"logprobs": True, "top_logprobs": 3}
    whole = client.chat.completions.create(model="red", **asked, extra_body=RUN_ON)
    assert whole.choices[0].logprobs is not None
    content = whole.choices[0].logprobs.content
    assert content is not None and len(content) == 24
    for entry in content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0
        assert entry.bytes is not None
    raw = b"".join(bytes(entry.bytes or ()) for entry in content)
    assert raw.decode("utf-8", "replace") == whole.choices[0].message.content
    chunks = client.chat.completions.create(model="red", **asked, extra_body=RUN_ON, stream=True)
    logprobs = [c.choices[0].logprobs for c in chunks]
    streamed = [entry for lp in logprobs if lp is not None for entry in lp.content or ()]
    assert [entry.token for entry in streamed] == [entry.token for entry in content]
    bare = client.chat.completions.create(model="red", **(asked | {"top_logprobs": None}))
    assert bare.choices[0].logprobs is not None and bare.choices[0].logprobs.content is not None
    assert bare.choices[0].logprobs.content[0].top_logprobs == []


@pytest.mark.case("C87")
def test_stop_strings(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="red", **GREEDY, extra_body=RUN_ON)
    text = whole.choices[0].message.content or ""
    stop = text[8:11]
    asked = GREEDY | {"stop": stop}
    stopped = client.chat.completions.create(model="red", **asked, extra_body=RUN_ON)
    assert stopped.choices[0].message.content == text[: text.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage is not None and stopped.usage.completion_tokens < 24
    chunks = client.chat.completions.create(model="red", **asked, extra_body=RUN_ON, stream=True)
    pieces, reasons = [], []
    for chunk in chunks:
        pieces.append(chunk.choices[0].delta.content or "")
        reasons.append(chunk.choices[0].finish_reason)
    assert "".join(pieces) == text[: text.index(stop)]
    assert reasons[-1] == "stop"
    none: Any
    for none in ([], None):
        same = client.chat.completions.create(
            model="red", **(GREEDY | {"stop": none}), extra_body=RUN_ON
        )
        assert same.choices[0].message.content == text


def test_a_stop_token_ends_and_is_not_shown(client: OpenAI) -> None:
    asked = GREEDY | {"logprobs": True}
    whole = client.chat.completions.create(model="red", **asked, extra_body=RUN_ON)
    assert whole.choices[0].logprobs is not None and whole.choices[0].logprobs.content is not None
    tokens = [bytes(entry.bytes or ()) for entry in whole.choices[0].logprobs.content]
    position = next(number for number in range(3, 24) if tokens[number] not in tokens[:number])
    shown = b"".join(tokens[: position + 1])
    stop_id = BYTES.index(shown[-1])
    stopped = client.chat.completions.create(
        model="red", **GREEDY, extra_body=RUN_ON | {"stop_token_ids": [stop_id]}
    )
    expected = shown[:-1].decode("utf-8", "replace")
    assert stopped.choices[0].message.content == expected
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage is not None
    assert stopped.usage.completion_tokens == position + 1


@pytest.mark.case("C97")
def test_the_cap_is_exact(client: OpenAI) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        cap: Any = {name: 5}
        answer = client.chat.completions.create(model="tiny", messages=HI, **cap, extra_body=RUN_ON)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None and answer.usage.completion_tokens == 5


@pytest.mark.case("C97")
def test_without_a_cap_the_context_is_the_limit(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HI, extra_body=RUN_ON)
    assert answer.usage is not None and answer.usage.total_tokens == 512
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.case("C85")
@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_model_is_404(client: OpenAI, stream: bool) -> None:
    """Peers said 200 with an error inside, or opened a stream first."""
    for body in ({}, {"lora_path": "nope"}):
        with pytest.raises(openai.NotFoundError) as refused:
            client.chat.completions.create(
                model="tiny" if body else "nope", **GREEDY, stream=stream, extra_body=body
            )
        assert refused.value.code == "model_not_found"
        assert refused.value.param == ("lora_path" if body else "model")
        assert refused.value.response.headers["content-type"].startswith("application/json")


@pytest.mark.case("C81")
@pytest.mark.parametrize("name", ["tiny:red", "tiny/red", "TINY", "red ", "a:b:c", "tiny:nope"])
def test_names_match_exactly_and_never_fall_back(client: OpenAI, name: str) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model=name, **GREEDY)


def test_two_different_adapters_are_a_contradiction(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nope", **GREEDY, extra_body={"lora_path": "red"})


@pytest.mark.case("C99")
@pytest.mark.parametrize("stream", [False, True])
def test_too_long_says_the_numbers(client: OpenAI, stream: bool) -> None:
    long: list[Any] = [{"role": "user", "content": "x" * 1000}]
    for cap in (None, 5):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(
                model="red", messages=long, max_tokens=cap, stream=stream
            )
        assert refused.value.code == "context_length_exceeded"
        assert refused.value.param == "messages"
        assert "512" in refused.value.message and "10" in refused.value.message


@pytest.mark.case("C114")
@pytest.mark.parametrize(
    ("change", "param"),
    [({"temperature": "hot"}, "temperature"), ({"logit_bias": {"300": 1}}, "logit_bias")],
)
def test_errors_come_before_the_stream(server: Server, change: dict[str, Any], param: str) -> None:
    answers = [
        server.call("/v1/chat/completions", GREEDY | {"model": "red", "stream": stream} | change)
        for stream in (False, True)
    ]
    assert answers[0].body == answers[1].body
    assert answers[1].status == 400
    assert answers[1].error["param"] == param


@pytest.mark.case("C82")
def test_a_bad_token_id_leaves_the_neighbours_alone(server: Server, client: OpenAI) -> None:
    """At peers one such request killed the engine for all."""
    stream = client.chat.completions.create(model="red", **GREEDY, extra_body=RUN_ON, stream=True)
    first = next(iter(stream))
    for change in ({"logit_bias": {"259": 1}}, {"stop_token_ids": [259]}):
        body = GREEDY | {"model": "red"} | change
        assert server.call("/v1/chat/completions", body).status == 400
    rest = "".join(chunk.choices[0].delta.content or "" for chunk in itertools.chain(stream))
    alone = client.chat.completions.create(model="red", **GREEDY, extra_body=RUN_ON)
    assert (first.choices[0].delta.content or "") + rest == alone.choices[0].message.content


@pytest.mark.case("C79")
def test_a_clients_request_id_is_only_echoed(server: Server) -> None:
    """Two live requests with one id crashed or mixed at peers."""
    body = GREEDY | {"model": "red"}
    same = {"X-Request-Id": "abc-1"}
    first = server.call("/v1/chat/completions", body, headers=same)
    second = server.call("/v1/chat/completions", body, headers=same)
    assert first.headers["X-Request-Id"] == second.headers["X-Request-Id"] == "abc-1"
    assert first.json["id"] != second.json["id"]
    bad = server.call("/v1/chat/completions", body, headers={"X-Request-Id": "x" * 200})
    assert bad.status == 200
    assert "X-Request-Id" not in bad.headers


def test_another_chat_template(client: OpenAI) -> None:
    plain = client.chat.completions.create(model="red", **GREEDY)
    source = "{% for message in messages %}{{ message.role }}: {{ message.content }}{% endfor %}"
    told = {"chat_template": source, "max_prompt_tokens": 64}
    other = client.chat.completions.create(model="red", **GREEDY, extra_body=told)
    assert plain.usage is not None and other.usage is not None
    # The tiny tokenizer has a token for each byte, and the template adds no control token.
    assert other.usage.prompt_tokens == len("user: hi there")
    for change in ({"max_prompt_tokens": 5}, {"chat_template": "{% if"}, {"chat_template": ""}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="red", **GREEDY, extra_body=told | change)
        assert caught.value.param in ("messages", "chat_template")
