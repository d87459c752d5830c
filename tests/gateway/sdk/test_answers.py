"""Every kind of answer of the real engine, as the official Python SDK types it."""

import json
from typing import Any, Literal

import pytest
from openai.types import Completion, Model
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessageFunctionToolCall,
)
from pydantic import BaseModel

from tests.gateway.conftest import Customer
from tests.gateway.live import BASE_MODEL
from tests.gateway.sdk.shapes import frames, strict

MESSAGES: list[Any] = [{"role": "user", "content": "Hi there"}]
# Random weights may end anywhere.
CHAT: dict[str, Any] = {
    "model": "bot",
    "messages": MESSAGES,
    "max_tokens": 8,
    "temperature": 0,
    "extra_body": {"ignore_eos": True},
}
TEXT: dict[str, Any] = {key: value for key, value in CHAT.items() if key != "messages"}
# What OpenAI's reference has in every answer, be it null. The SDK's types forgive its absence.
ALWAYS = {"id", "object", "created", "model", "system_fingerprint", "choices"}
SCHEMA = {
    "type": "object",
    "properties": {"is_order": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
    "required": ["is_order", "kind"],
    "additionalProperties": False,
}


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    named = {"name": "order", "schema": schema, "strict": True}
    return {"type": "json_schema", "json_schema": named}


CHATS = {
    "plain": {},
    "n": {"n": 2, "temperature": 1, "seed": 7},
    "stop": {"stop": ["a", "e", "\n"], "seed": 1, "temperature": 1},
    "logprobs": {"logprobs": True},
    "top logprobs": {"logprobs": True, "top_logprobs": 3, "n": 2},
    "seed": {"temperature": 1, "top_p": 0.9, "seed": 11},
    "bias": {"logit_bias": {"65": 100}},
    "penalties": {"presence_penalty": 1.5, "frequency_penalty": -0.5},
    "schema": {"response_format": json_schema(SCHEMA), "max_tokens": 60},
    "object": {"response_format": {"type": "json_object"}, "max_tokens": 200, "seed": 3},
    "text": {"response_format": {"type": "text"}, "tool_choice": "none", "tools": []},
    "unused": {"user": "ann", "metadata": {"a": "b"}, "service_tier": "auto", "store": True},
    "newer cap": {"max_tokens": None, "max_completion_tokens": 3},
}
COMPLETIONS = {
    "plain": {"prompt": "Hi"},
    "many": {"prompt": ["Hi", "Ho ho"], "n": 2, "temperature": 1, "seed": 7},
    "ids": {"prompt": [72, 105]},
    "echo": {"prompt": "Hi", "echo": True},
    "logprobs": {"prompt": "Hi", "logprobs": 2},
    "scored": {"prompt": "Hi there", "echo": True, "logprobs": 1, "max_tokens": 0},
    "stop": {"prompt": "Hi", "stop": "e", "temperature": 1, "seed": 5},
    "bias": {"prompt": "Hi", "logit_bias": {"65": 100}, "best_of": 1},
}


@pytest.mark.parametrize("fields", CHATS.values(), ids=CHATS)
def test_chat(customer: Customer, fields: dict[str, Any]) -> None:
    create = customer.client().chat.completions.with_raw_response.create
    whole = strict(ChatCompletion, create(**CHAT | fields).content)
    assert whole.model_fields_set == ALWAYS | {"usage"}
    for choice in whole.choices:
        assert choice.model_fields_set == {"index", "message", "logprobs", "finish_reason"}
        assert choice.message.model_fields_set == {"role", "content", "refusal"}
    chunks = streamed_chat(customer, fields)
    for index, choice in enumerate(whole.choices):
        mine = [one for chunk in chunks for one in chunk.choices if one.index == index]
        assert choice.index == index
        assert "".join(one.delta.content or "" for one in mine) == choice.message.content
        assert [one.delta.role for one in mine if one.delta.role] == ["assistant"]
        assert [one.finish_reason for one in mine if one.finish_reason] == [choice.finish_reason]
        parts = [one.logprobs.content or [] for one in mine if one.logprobs]
        tokens = [token.token for part in parts for token in part]
        wanted = choice.logprobs.content or [] if choice.logprobs else []
        assert tokens == [token.token for token in wanted]
    usage = chunks[-1].usage
    assert usage and whole.usage
    # The second time the prompt is cached.
    assert usage.model_dump(exclude={"prompt_tokens_details"}) == whole.usage.model_dump(
        exclude={"prompt_tokens_details"}
    )


def streamed_chat(customer: Customer, fields: dict[str, Any]) -> list[ChatCompletionChunk]:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    create = customer.client().chat.completions.with_raw_response.create
    text = create(**CHAT | fields | options).http_response.read().decode()
    chunks = [strict(ChatCompletionChunk, one) for one in frames(text)]
    for chunk in chunks:
        assert chunk.model_fields_set == ALWAYS | {"usage"}
        for choice in chunk.choices:
            assert choice.model_fields_set == {"index", "delta", "logprobs", "finish_reason"}
    assert len({(one.id, one.model, one.created, one.system_fingerprint) for one in chunks}) == 1
    return chunks


@pytest.mark.parametrize("names", [["order"], ["order", "cancel"]])
def test_a_call_that_must_come(customer: Customer, names: list[str]) -> None:
    """As instructor, pydantic-ai, LangChain and the AI SDK ask for an object by default."""
    functions = [{"name": name, "parameters": SCHEMA, "strict": True} for name in names]
    asked = CHAT | {
        "tools": [{"type": "function", "function": one} for one in functions],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 400,
    }
    create = customer.client().chat.completions.with_raw_response.create
    whole = strict(ChatCompletion, create(**asked).content).choices[0]
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
    [call] = whole.message.tool_calls or []
    assert isinstance(call, ChatCompletionMessageFunctionToolCall) and call.id
    assert call.function.name in names
    assert json.loads(call.function.arguments).keys() == SCHEMA["properties"].keys()
    text = create(**asked, stream=True).http_response.read().decode()
    choices = [strict(ChatCompletionChunk, one).choices[0] for one in frames(text)]
    assert choices[-1].finish_reason == "tool_calls"
    parts = [part for choice in choices for part in choice.delta.tool_calls or []]
    assert {part.index for part in parts} == {0} and len({part.id for part in parts}) == 2
    heads = [part.function for part in parts if part.function and part.function.name]
    assert [head.name for head in heads] == [call.function.name]
    arguments = "".join(part.function.arguments or "" for part in parts if part.function)
    assert arguments == call.function.arguments


@pytest.mark.parametrize("fields", COMPLETIONS.values(), ids=COMPLETIONS)
def test_completions(customer: Customer, fields: dict[str, Any]) -> None:
    create = customer.client().completions.with_raw_response.create
    # Before a prompt's first token there is nothing: null at OpenAI too, though not in its types.
    whole = strict(Completion, create(**TEXT | fields).content.replace(b"[null,", b"["))
    assert whole.model_fields_set == ALWAYS | {"usage"}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    text = create(**TEXT | fields | options).http_response.read().decode()
    # Its chunks are whole completions but for the end, which only the last has.
    chunks = [json.loads(one) for one in frames(text)]
    assert all(chunk.keys() == ALWAYS | {"usage"} for chunk in chunks)
    for index, choice in enumerate(whole.choices):
        mine = [one for chunk in chunks for one in chunk["choices"] if one["index"] == index]
        assert choice.index == index
        assert "".join(one["text"] for one in mine) == choice.text
        reasons = [one["finish_reason"] for one in mine]
        assert [one for one in reasons if one is not None] == [choice.finish_reason]
        tokens = [token for one in mine if one["logprobs"] for token in one["logprobs"]["tokens"]]
        assert tokens == (choice.logprobs.tokens or [] if choice.logprobs else [])
    assert whole.usage
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == whole.usage.total_tokens


def test_options_do_what_they_say(customer: Customer) -> None:
    """Of the engine's options those whose effect a random model shows."""

    def say(**fields: Any) -> str:
        answer = customer.client().chat.completions.create(**CHAT | fields)
        return answer.choices[0].message.content or ""

    plain = say()
    drawn = [say(temperature=1, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] and len({plain, *drawn}) == 3
    assert len(set(say(logit_bias={"65": 100}))) == 1
    assert say(stop=[plain[3:5]]) == plain[: plain.index(plain[3:5])]
    assert len(set(say(logit_bias={"65": 20}, presence_penalty=2, frequency_penalty=2))) > 1


# Random weights like white space between a schema's parts.
BRIEF: Any = {"max_tokens": 200, "seed": 1}


NULLS = {
    *("stop", "temperature", "top_p", "n", "logit_bias"),
    *("tools", "tool_choice", "response_format", "stream", "stream_options"),
    *("user", "metadata", "logprobs", "top_logprobs", "presence_penalty"),
    *("frequency_penalty", "max_completion_tokens", "parallel_tool_calls", "modalities", "store"),
    *("service_tier", "reasoning_effort", "functions", "function_call"),
}


@pytest.mark.case("C102")
def test_null_is_absent(customer: Customer) -> None:
    """Other clients send null for what is not set; peers answered 422."""
    create = customer.client().chat.completions.create
    plain = CHAT | {"temperature": 1, "seed": 3}
    filled = plain | {"extra_body": dict.fromkeys(NULLS - {"temperature"})}
    filled["extra_body"] |= {"ignore_eos": True, "logit_bias": {}, "tools": []}
    texts = [create(**body).choices[0].message.content for body in (plain, filled)]
    assert texts[0] == texts[1] and texts[0]


@pytest.mark.case("C100")
def test_message_variants(customer: Customer) -> None:
    """Parts are their joined text, developer is system; what a call was answered is kept."""

    def say(*messages: dict[str, Any]) -> tuple[str | None, int]:
        answer = customer.client().chat.completions.create(**CHAT | {"messages": list(messages)})
        assert answer.usage
        return answer.choices[0].message.content, answer.usage.prompt_tokens

    hi = {"role": "user", "content": "Hi there"}
    parts = [{"type": "text", "text": "Hi "}, {"type": "text", "text": "there"}]
    assert say({"role": "user", "content": parts}) == say(hi) == say(hi | {"name": "Ann"})
    brief, kind = {"content": "Be brief."}, {"role": "system", "content": "Be kind."}
    assert say({"role": "developer"} | brief, kind, hi) == say({"role": "system"} | brief, kind, hi)
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    told = {"role": "tool", "tool_call_id": "c1", "content": "42"}
    assert say(hi, called, told)[1] > say(hi, told)[1] > say(hi)[1]
    assert say({"role": "user", "content": ""})[1] == say(hi)[1] - len("Hi there")


class Order(BaseModel):
    is_order: bool
    kind: Literal["desk lamp", "mug"]


def test_parse_with_pydantic(customer: Customer) -> None:
    parse = customer.client().chat.completions.parse
    answer = parse(model="bot", messages=MESSAGES, response_format=Order, **BRIEF)
    assert isinstance(answer.choices[0].message.parsed, Order)
    assert answer.choices[0].finish_reason == "stop"


def test_the_event_helper(customer: Customer) -> None:
    """It keeps a snapshot of all chunks, and parses at the end."""
    options = {"stream_options": {"include_usage": True}}
    helper = customer.client().chat.completions.stream(
        model="bot",
        messages=MESSAGES,
        response_format=Order,
        **BRIEF,
        logprobs=True,
        **options,  # type: ignore[arg-type]
    )
    with helper as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Order)
    assert final.usage and final.usage.completion_tokens
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta"} <= set(kinds)
    assert kinds.count("content.done") == kinds.count("logprobs.content.done") == 1


def test_a_response_that_is_read_as_it_comes(customer: Customer) -> None:
    open_chat = customer.client().chat.completions.with_streaming_response.create
    with open_chat(**CHAT) as response:
        assert response.headers["x-request-id"] == response.request_id
        whole = response.parse()
    assert whole.choices[0].message.content
    with open_chat(**CHAT, stream=True) as response:
        assert response.headers["x-accel-buffering"] == "no"
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"


@pytest.mark.case("C116")
def test_request_ids_and_counts(customer: Customer) -> None:
    """What the SDK calls _request_id is the ledger's, and part of the answer's id."""
    client = customer.client()
    whole = client.chat.completions.create(**CHAT)
    text = client.completions.create(**TEXT, prompt="Hi")
    stream = client.chat.completions.create(**CHAT, stream=True)
    chunks = list(stream)
    ids = [whole._request_id, text._request_id, stream.response.headers["x-request-id"]]
    rows = customer.usage(3)
    assert [row.request_id for row in rows] == ids
    # The bill counts what the answers said.
    assert whole.usage and text.usage
    counts = [(row.prompt_tokens, row.completion_tokens) for row in rows]
    said = [(one.prompt_tokens, one.completion_tokens) for one in (whole.usage, text.usage)]
    assert counts == [*said, said[0]]
    assert [whole.id, text.id, chunks[0].id] == [
        f"chatcmpl-{ids[0]}",
        f"cmpl-{ids[1]}",
        f"chatcmpl-{ids[2]}",
    ]


def test_models(customer: Customer) -> None:
    models = customer.client().models
    listed = models.with_raw_response.list()
    found = json.loads(listed.content)
    assert found.keys() == {"object", "data"} and found["object"] == "list"
    objects = [strict(Model, json.dumps(one)) for one in found["data"]]
    assert [one.id for one in objects] == [BASE_MODEL, "bot"]
    for one in objects:
        assert one.model_fields_set == {"id", "object", "created", "owned_by"}
        assert strict(Model, models.with_raw_response.retrieve(one.id).content) == one
    # The SDK percent-encodes what a path may not hold.
    assert models.retrieve("bot@1").id == "bot@1"
