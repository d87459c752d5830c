"""Every parameter that the real engine or the gateway refuses: named, before any stream."""

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.gateway.conftest import Customer, Stack
from tests.gateway.live import BASE_MODEL

MESSAGES: list[Any] = [{"role": "user", "content": "Hi there"}]
CHAT: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 4}
INVALID, UNSUPPORTED, TOO_LONG = (
    "invalid_request",
    "unsupported_parameter",
    "context_length_exceeded",
)
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no"}}}
A_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content} | more]}


# (what is wrong, param, code)
CHATS: list[tuple[dict[str, Any], str, str]] = [
    ({"model": None}, "model", INVALID),
    ({"messages": None}, "messages", INVALID),
    ({"messages": []}, "messages", INVALID),
    (user("x" * 3000), "messages", TOO_LONG),
    ({"max_tokens": 600}, "messages", TOO_LONG),
    (user(None), "messages[0].content", INVALID),
    (user([]), "messages[0].content", INVALID),
    (user("Hi", role="robot"), "messages[0].role", INVALID),
    (user("Hi", colour="red"), "messages[0].colour", UNSUPPORTED),
    (
        user([{"type": "image_url", "image_url": {"url": "x"}}]),
        "messages[0].content[0].type",
        UNSUPPORTED,
    ),
    ({"temperature": 9}, "temperature", INVALID),
    ({"temperature": "hot"}, "temperature", INVALID),
    ({"top_p": 1.5}, "top_p", INVALID),
    ({"presence_penalty": 3}, "presence_penalty", INVALID),
    ({"frequency_penalty": -3}, "frequency_penalty", INVALID),
    ({"seed": "x"}, "seed", INVALID),
    ({"n": 0}, "n", INVALID),
    ({"n": 17}, "n", INVALID),
    ({"n": 1000}, "n", INVALID),
    ({"stop": ["a"] * 17}, "stop", INVALID),
    ({"stop": ""}, "stop", INVALID),
    ({"stop": 5}, "stop", INVALID),
    ({"max_tokens": 0}, "max_tokens", INVALID),
    ({"max_tokens": "4"}, "max_tokens", INVALID),
    ({"max_completion_tokens": 5}, "max_completion_tokens", INVALID),
    ({"logit_bias": {"999999": 5}}, "logit_bias", INVALID),
    ({"logit_bias": {"x": 5}}, "logit_bias", INVALID),
    ({"logit_bias": {"65": 101}}, "logit_bias.65", INVALID),
    ({"logprobs": 1}, "logprobs", INVALID),
    ({"top_logprobs": 3}, "top_logprobs", INVALID),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", INVALID),
    ({"response_format": {"type": "yaml"}}, "response_format.type", UNSUPPORTED),
    ({"response_format": JSON_SCHEMA}, "response_format", INVALID),
    ({"tools": [A_TOOL]}, "tools", UNSUPPORTED),
    ({"tools": [{"type": "function"}]}, "tools[0].function", INVALID),
    ({"tool_choice": "required"}, "tool_choice", INVALID),
    ({"tool_choice": "any"}, "tool_choice", UNSUPPORTED),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls", INVALID),
    ({"functions": [{}]}, "functions", UNSUPPORTED),
    ({"reasoning_effort": "low"}, "reasoning_effort", UNSUPPORTED),
    ({"modalities": ["audio"]}, "modalities", UNSUPPORTED),
    ({"store": "yes"}, "store", INVALID),
    ({"user": 5}, "user", INVALID),
    ({"no_such_field": 1}, "no_such_field", UNSUPPORTED),
]
COMPLETIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": None}, "prompt", INVALID),
    ({"prompt": 5}, "prompt", INVALID),
    ({"prompt": ""}, "prompt", INVALID),
    ({"prompt": [999999]}, "prompt", INVALID),
    ({"prompt": ["a"] * 65}, "prompt", INVALID),
    ({"prompt": "x" * 600}, "prompt", TOO_LONG),
    ({"best_of": 2}, "best_of", UNSUPPORTED),
    ({"suffix": "end"}, "suffix", UNSUPPORTED),
    ({"logprobs": 21}, "logprobs", INVALID),
    ({"logprobs": True}, "logprobs", INVALID),
    ({"echo": "yes"}, "echo", INVALID),
    ({"max_tokens": -1}, "max_tokens", INVALID),
    ({"messages": MESSAGES}, "messages", UNSUPPORTED),
]


def refusals(create: Any, body: dict[str, Any], cases: list[Any]) -> list[Any]:
    """(what is wrong, param, code) of each, as the client raised it; plain and streamed alike."""
    found = []
    for fields, _, _ in cases:
        bodies = []
        for is_stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                create(stream=is_stream, extra_body=body | fields)
            assert caught.value.response.headers["content-type"] == "application/json"
            bodies.append(caught.value.body)
        assert bodies[0] == bodies[1] and isinstance(bodies[0], dict)
        assert list(bodies[0]) == ["message", "type", "param", "code"]
        assert bodies[0]["type"] == "invalid_request_error" and len(bodies[0]["message"]) < 300
        found.append((fields, bodies[0]["param"], bodies[0]["code"]))
    return found


@pytest.mark.case("C87")
@pytest.mark.case("C94")
@pytest.mark.case("C95")
@pytest.mark.case("C97")
@pytest.mark.case("C100")
@pytest.mark.case("C114")
def test_chat(customer: Customer) -> None:
    """Peers sent 200 and an odd event, or an error without its name."""
    create = customer.client().chat.completions.create
    sdk = {"model": "bot", "messages": MESSAGES}

    def call(**options: Any) -> None:
        create(**sdk, **options)

    assert refusals(call, CHAT, CHATS) == CHATS


@pytest.mark.case("C96")
def test_completions(customer: Customer) -> None:
    create = customer.client().completions.create

    def call(**options: Any) -> None:
        create(model="bot", prompt="Hi", **options)

    assert refusals(call, {"max_tokens": 4}, COMPLETIONS) == COMPLETIONS


def test_options_of_a_stream_alone(customer: Customer) -> None:
    create = customer.client().chat.completions.create
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="bot", messages=MESSAGES, stream_options={"include_usage": True})
    assert caught.value.param == "stream_options"
    for options in ({"include_usage": 1}, {"no_such_option": True}, 5):
        with pytest.raises(openai.BadRequestError) as caught:
            create(
                model="bot", messages=MESSAGES, stream=True, extra_body={"stream_options": options}
            )
        assert str(caught.value.param).startswith("stream_options")


@pytest.mark.case("C99")
def test_too_long_however_it_came(customer: Customer, engine_stack: Any, tmp_path: Path) -> None:
    """Long by one text, by many messages or by a tool's schema; neither billed nor counted."""
    _, web, url = engine_stack
    limited = Stack(web, [], url, tmp_path).make_customer(tokens_per_minute=1100)
    create = limited.client().chat.completions.with_raw_response.create
    tool = {"type": "function", "function": {"name": "f", "description": "x" * 3000}}
    calls = [user("x" * 3000), {"messages": MESSAGES * 60}, {"tools": [tool]}]
    for fields in calls:
        with pytest.raises(openai.BadRequestError) as caught:
            create(**{"model": BASE_MODEL, "messages": MESSAGES, **fields})
        assert "tools" in fields or caught.value.code == TOO_LONG
    answer = create(model=BASE_MODEL, messages=MESSAGES, max_tokens=5)
    # Only what this one reserved is gone.
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) > 1100 - 300
    rows = limited.usage(4)
    assert [row.cost for row in rows[:3]] == [0] * 3 and rows[3].cost > 0
