"""Calls that a model chose to make, by OpenAI's own client: here its text is held to them."""

import json
import re
from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageFunctionToolCall

from inference.server.chosen_calls import ChosenCalls

# As Qwen's and Hermes's templates teach it, in short.
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} Answer with <tool_call>…</tool_call>{% endif %}"
    "{% for one in messages %}{{ one.role }}: {{ one.content }}\n"
    "{% for call in one.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}{% endfor %}"
)
ONE = '<tool_call>\n{"name": "f", "arguments": {"a": "}</tool"}}\n</tool_call>'
TWO = f'Well.\n{ONE}\n<tool_call>{{"name": "g"}}</tool_call>\n'
# What looks like a call and is none.
NONE = '<tool_call>{"name": "f", "arguments": [1]}</tool_call> <tool_ca <tool_call>{"name": "f"'
CALLS = [("f", {"a": "}</tool"}), ("g", {})]
TOOLS: Any = [{"type": "function", "function": {"name": name}} for name in "fg"]


def asked(text: str, **more: Any) -> dict[str, Any]:
    body = {"chat_template": TEMPLATE, "structured_outputs": {"regex": re.escape(text)}}
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "tools": TOOLS,
        "max_tokens": 200,
        "extra_body": body,
        **more,
    }


def calls_in(message: Any) -> list[tuple[str, Any]]:
    found = []
    for call in message.tool_calls or []:
        assert isinstance(call, ChatCompletionMessageFunctionToolCall)
        assert re.fullmatch("call_[0-9a-f]{32}", call.id)
        found.append((call.function.name, json.loads(call.function.arguments)))
    return found


@pytest.mark.parametrize(
    ("text", "more", "content", "calls"),
    [
        (ONE, {}, None, CALLS[:1]),
        (TWO, {}, "Well.\n", CALLS),
        (TWO, {"parallel_tool_calls": False}, "Well.\n", CALLS[:1]),
        (NONE, {}, NONE, []),
        (ONE, {"tool_choice": "none"}, ONE, []),
    ],
)
def test_it_works(
    client: OpenAI, text: str, more: dict[str, Any], content: str | None, calls: list[Any]
) -> None:
    whole = client.chat.completions.create(**asked(text, **more)).choices[0]
    with client.chat.completions.stream(**asked(text, **more)) as stream:
        streamed = stream.get_final_completion().choices[0]
    for choice in (whole, streamed):
        assert (choice.message.content or None, calls_in(choice.message)) == (content, calls)
        assert choice.finish_reason == ("tool_calls" if calls else "stop")
    ids = [call.id for call in whole.message.tool_calls or []]
    assert len(set(ids)) == len(calls)


def test_half_a_call_is_text(client: OpenAI) -> None:
    choice = client.chat.completions.create(**asked(ONE, max_tokens=30)).choices[0]
    assert choice.message.content == ONE[:30] and choice.message.tool_calls is None
    assert choice.finish_reason == "length"


def test_its_result_comes_back(client: OpenAI) -> None:
    """The loop of every agent: the call, what it gave, and the answer."""
    request = asked(ONE)
    called = client.chat.completions.create(**request).choices[0].message
    [call] = called.tool_calls or []
    result = {"role": "tool", "tool_call_id": call.id, "content": "42"}
    request["messages"] = [*request["messages"], called, result]
    request["extra_body"] |= {"structured_outputs": {"regex": "It is 42"}}
    answer = client.chat.completions.create(**request).choices[0]
    assert (answer.message.content, answer.finish_reason) == ("It is 42", "stop")


@pytest.mark.parametrize("size", [1, 2, 3, 11, 1000])
@pytest.mark.parametrize("text", ["", "plain", ONE, TWO, NONE, "<<tool_call>" * 3, f"{NONE}{ONE}"])
def test_in_pieces_as_whole(text: str, size: int) -> None:
    def read(size: int) -> tuple[str, list[Any]]:
        chosen = ChosenCalls(None)
        pieces = [chosen.feed(text[at : at + size]) for at in range(0, len(text), size)]
        calls = [call for _, found in pieces for call in found]
        assert calls == chosen.calls
        assert [call["index"] for call in calls] == list(range(len(calls)))
        shown = "".join(piece for piece, _ in pieces) + chosen.finish()
        return shown, [call["function"] for call in calls]

    assert read(size) == read(len(text) + 1)


def test_nothing_waits_that_cannot_be_a_tag() -> None:
    chosen = ChosenCalls(None)
    assert chosen.feed("a < b, <tool") == ("a < b, ", [])
    assert chosen.feed("s>") == ("<tools>", [])
