"""Constrained output over HTTP, by OpenAI's own client, from the engine in its process."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.inference.server.conftest import Server

MESSAGES: Any = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "grün"]},
        "size": {"type": "integer", "minimum": 1, "maximum": 12},
        "parts": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["colour", "size", "parts"],
    "additionalProperties": False,
}
FORMAT: Any = {
    "type": "json_schema",
    "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True},
}


def fits(text: str | None) -> bool:
    jsonschema.validate(json.loads(text or ""), SCHEMA)
    return True


@pytest.mark.parametrize("model", ["tiny", "red"])
def test_it_works(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, response_format=FORMAT, max_tokens=300, n=2, seed=1
    )
    assert len(answer.choices) == 2
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        assert fits(choice.message.content)


def test_streamed_as_whole(client: OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "red",
        "messages": MESSAGES,
        "response_format": FORMAT,
        "max_tokens": 300,
        "seed": 2,
    }
    whole = client.chat.completions.create(**asked).choices[0].message.content
    with client.chat.completions.create(**asked, stream=True) as stream:
        chunks = [chunk.choices[0] for chunk in stream]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == whole
    assert chunks[-1].finish_reason == "stop"
    assert fits(whole)


def test_a_pydantic_model(client: OpenAI) -> None:
    """The client writes the schema and reads the answer."""

    class Part(BaseModel):
        is_new: bool
        code: int | None

    class Thing(BaseModel):
        part: Part
        others: list[Part]

    answer = client.chat.completions.parse(
        model="tiny",
        messages=MESSAGES,
        response_format=Thing,
        max_tokens=400,
        seed=5,
        logit_bias={"93": 20, "125": 20},
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Thing)


def test_any_object_cut_short(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        response_format={"type": "json_object"},
        max_tokens=3,
        extra_body={"min_tokens": 3},
    )
    assert answer.choices[0].finish_reason == "length"
    assert (answer.choices[0].message.content or "").startswith("{")


@pytest.mark.parametrize(
    ("asked", "pattern"),
    [
        ({"regex": r"[A-F]{4}-\d{2}"}, r"[A-F]{4}-\d{2}"),
        ({"choice": ['a "quoted" answer', "né\n"]}, 'a "quoted" answer|né\n'),
        ({"grammar": 'root ::= ("ab" | "c") tail\ntail ::= [0-9] | tail'}, r"(ab|c)\d"),
        ({"json": {"type": "boolean"}}, "true|false"),
    ],
)
def test_the_other_ways(client: OpenAI, asked: dict[str, Any], pattern: str) -> None:
    body = {"structured_outputs": asked, "ignore_eos": True}
    chat = client.chat.completions.create(
        model="red", messages=MESSAGES, max_tokens=60, extra_body=body, logprobs=True
    )
    completion = client.completions.create(model="red", prompt="x", max_tokens=60, extra_body=body)
    for text in (chat.choices[0].message.content, completion.choices[0].text):
        assert re.fullmatch(pattern, text or "")
    assert chat.choices[0].finish_reason == completion.choices[0].finish_reason == "stop"
    assert chat.choices[0].logprobs is not None
    shown = chat.choices[0].logprobs.content or []
    assert b"".join(bytes(token.bytes or ()) for token in shown).decode() == (
        chat.choices[0].message.content
    )


def test_a_stop_string_ends_it_before(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        stop=["-"],
        max_tokens=60,
        extra_body={"structured_outputs": {"regex": "[ab]{5}-[ab]{5}"}},
    )
    assert re.fullmatch("[ab]{5}", answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"not": {"type": "null"}}},
                }
            },
            "response_format",
            "#: 'not' is not supported",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "foo"}},
                }
            },
            "response_format",
            "foo",
        ),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs", "parenthesis"),
        ({"structured_outputs": {"regex": ".{1,999999999}"}}, "structured_outputs", "places"),
        ({"structured_outputs": {"grammar": "root ::= nothing"}}, "structured_outputs", "nothing"),
        ({"structured_outputs": {"regex": "a" * 20_000}}, "structured_outputs", "16384"),
    ],
)
def test_a_refusal(
    client: OpenAI,
    fields: dict[str, Any],
    param: str,
    reason: str,
    is_stream: bool,
) -> None:
    """The status comes before the first byte of a stream."""
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="red", messages=MESSAGES, max_tokens=5, stream=is_stream, extra_body=fields
        )
    assert refused.value.param == param
    assert refused.value.code == "invalid_request"
    assert reason in str(refused.value)


def test_a_huge_schema_holds_up_nobody(client: OpenAI, server: Server) -> None:
    """While it is compiled, others' tokens keep coming."""
    properties = {f"field_{n}": {"enum": [f"v{n}{m}" for m in range(8)]} for n in range(500)}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    form: Any = {"type": "json_schema", "json_schema": {"name": "huge", "schema": schema}}
    with ThreadPoolExecutor(1) as pool:
        huge = pool.submit(
            client.chat.completions.create,
            model="tiny",
            messages=MESSAGES,
            response_format=form,
            max_tokens=20,
        )
        gaps, last_s = [], time.monotonic()
        with client.completions.create(
            model="red", prompt="x", max_tokens=300, stream=True, extra_body={"ignore_eos": True}
        ) as stream:
            for _ in stream:
                gaps.append(time.monotonic() - last_s)
                last_s = time.monotonic()
        content = huge.result(60).choices[0].message.content
    assert (content or "").startswith("{")
    assert max(gaps[1:]) < 2.0
