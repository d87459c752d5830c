"""What other clients than OpenAI's send, field by field as it was seen on the wire: each is taken.

Their versions, and how to set them up, are in docs/clients.md.
"""

from typing import Any

import pytest
import requests

from tests.gateway.conftest import Customer
from tests.gateway.sdk.shapes import frames

HI: list[Any] = [{"role": "user", "content": "Hi"}]
# pydantic's schema of a class, and zod's of an object.
PYDANTIC = {
    "description": "A person.",
    "properties": {
        "name": {"maxLength": 20, "title": "Name", "type": "string"},
        "kind": {"default": "a", "enum": ["a", "b"], "title": "Kind", "type": "string"},
    },
    "required": ["name", "kind"],
    "title": "P",
    "type": "object",
}
ZOD = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "id": {"type": "string", "format": "cuid2", "pattern": "^[0-9a-z]{4}$"},
        "age": {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}, "maxItems": 2},
        "note": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]},
    },
    "required": ["id", "age", "tags", "note"],
    "additionalProperties": False,
}
CLOSED = PYDANTIC | {"additionalProperties": False}
NAMED = {"type": "function", "function": {"name": "P"}}
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
CALL = {"function": {"arguments": '{"city": "x"}', "name": "w"}, "id": "c1", "type": "function"}
RESULT = {"role": "tool", "tool_call_id": "c1", "name": "w", "content": "sunny"}
PARTS = [{"type": "text", "text": "Hi"}]


def tools(schema: dict[str, Any], **more: Any) -> list[Any]:
    function = {"name": "P", "description": "A person.", "parameters": schema, **more}
    return [{"type": "function", "function": function}]


def form(schema: dict[str, Any]) -> dict[str, Any]:
    named = {"schema": schema, "name": "P", "strict": True}
    return {"type": "json_schema", "json_schema": named}


CHATS: dict[str, dict[str, Any]] = {
    "langchain": {
        **{"frequency_penalty": 0.1, "logit_bias": {"5": 1}, "logprobs": True, "n": 2, "seed": 1},
        **{"presence_penalty": 0.1, "service_tier": "auto", "stop": ["x"], "store": False},
        **{"top_logprobs": 2, "top_p": 0.9, "temperature": 0.4, "stream": False},
    },
    "langchain function calling": {
        **{"tools": tools(PYDANTIC), "tool_choice": NAMED, "parallel_tool_calls": False},
        **{"temperature": 0.0, "stream": False},
    },
    "instructor": {"tools": tools(PYDANTIC), "tool_choice": NAMED, "temperature": 0},
    "instructor partial": {"tools": tools(PYDANTIC), "tool_choice": NAMED, "stream": True},
    "pydantic-ai": {"tools": tools(CLOSED, strict=True), "tool_choice": "required"},
    "openai-agents": {
        **{"messages": [{"content": "short", "role": "system"}, *HI], "store": True},
        **{"metadata": {"a": "b"}, "response_format": form(CLOSED)},
    },
    "llama-index": {
        **{"tools": tools(CLOSED, strict=False), "tool_choice": "required"},
        "parallel_tool_calls": False,
    },
    "haystack": {"n": 1, "response_format": form(CLOSED), **WITH_USAGE},
    "smolagents": {"messages": [{"role": "user", "content": PARTS}], "stop": ["<end>"]},
    "litellm, a call's result": {
        "messages": [*HI, {"role": "assistant", "tool_calls": [CALL]}, RESULT]
    },
    "llm": {"response_format": {"type": "json_object"}, **WITH_USAGE},
    "outlines": {"structured_outputs": {"regex": "([0-9]{3})"}},
    "ai sdk": {
        **{"logprobs": True, "top_logprobs": 2, "user": "u", "parallel_tool_calls": True},
        **{"metadata": {"a": "b"}, "service_tier": "auto", "prompt_cache_key": "k"},
        **{"safety_identifier": "s", "store": True, "stop": ["\n"], "seed": 3},
    },
    "ai sdk object": {"response_format": form(ZOD), **WITH_USAGE},
    "ai sdk tool": {"tools": tools(ZOD), "tool_choice": NAMED, **WITH_USAGE},
    "a developer": {"messages": [{"role": "developer", "content": PARTS}, *HI]},
}
COMPLETIONS: dict[str, dict[str, Any]] = {
    "langchain": {
        **{"prompt": ["Hi"], "frequency_penalty": 0, "logprobs": None, "n": 1},
        **{"presence_penalty": 0, "seed": None, "temperature": 0.7, "top_p": 1},
    },
    "llm": {"prompt": "Hi", "logprobs": 2, **WITH_USAGE},
    # Its template's words, and some of the language's.
    "continue": {"prompt": "<PRE> a <SUF> b <MID>", "stop": [f"<{n}>" for n in range(16)]},
}


def answer_to(customer: Customer, path: str, body: dict[str, Any]) -> str:
    """With a base URL that ends in a slash, as many are written."""
    return requests.post(
        f"{customer.web.url}/v1//{path}",
        json={"model": "bot", "max_tokens": 12} | body,
        headers={"authorization": f"Bearer {customer.api_key}"},
        timeout=60,
    ).text


@pytest.mark.parametrize("body", CHATS.values(), ids=CHATS)
def test_chat(customer: Customer, body: dict[str, Any]) -> None:
    text = answer_to(customer, "chat/completions", {"messages": HI} | body)
    assert '"error"' not in text
    is_call = body.get("tool_choice") is not None
    assert ('"tool_calls":[' in text) == is_call
    if body.get("stream"):
        usages = [one for one in frames(text) if '"total_tokens"' in one]
        assert len(usages) == ("stream_options" in body)


@pytest.mark.parametrize("body", COMPLETIONS.values(), ids=COMPLETIONS)
def test_completions(customer: Customer, body: dict[str, Any]) -> None:
    text = answer_to(customer, "completions", body)
    assert '"text":' in text and '"error"' not in text
