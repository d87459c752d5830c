"""A call that must come, over HTTP, by OpenAI's own client, from the engine in its process."""

import json
from typing import Any

import jsonschema
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageFunctionToolCall

from inference.errors import EngineError
from inference.server.fields import Fields
from inference.server.forced_call import ForcedCall
from inference.server.tools import parse_tools
from tests.inference.server.conftest import Server

MESSAGES: Any = [{"role": "user", "content": "hello"}]
# As pydantic writes a model with a model inside: references from the root of its own schema.
SIZE = {"type": "object", "properties": {"cm": {"type": "integer", "minimum": 1, "maximum": 99}}}
ORDER = {
    "type": "object",
    "properties": {"size": {"$ref": "#/$defs/Size"}, "kind": {"enum": ["}", '"{']}},
    "required": ["size", "kind"],
    "$defs": {"Size": SIZE | {"required": ["cm"]}},
}
CANCEL = {"type": "object", "properties": {"at_once": {"type": "boolean"}}, "required": ["at_once"]}
SCHEMAS: dict[str, Any] = {"order": ORDER, "cancel": CANCEL}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
    for name, schema in SCHEMAS.items()
]
NAMED: Any = {"type": "function", "function": {"name": "order"}}
ASKED: dict[str, Any] = {"messages": MESSAGES, "tools": TOOLS, "max_tokens": 200}


def function_of(message: ChatCompletionMessage) -> tuple[str, str, str]:
    """(id, name, arguments) of its one call."""
    [call] = message.tool_calls or []
    assert isinstance(call, ChatCompletionMessageFunctionToolCall) and call.id.startswith("call_")
    return call.id, call.function.name, call.function.arguments


def fits(name: str, arguments: str) -> bool:
    jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    return True


@pytest.mark.parametrize("tool_choice", [NAMED, "required"])
@pytest.mark.parametrize("model", ["tiny", "red"])
def test_it_works(client: OpenAI, model: str, tool_choice: Any) -> None:
    """Although the model's template has no place to show a function."""
    answer = client.chat.completions.create(
        model=model, tool_choice=tool_choice, n=3, seed=1, parallel_tool_calls=False, **ASKED
    )
    names, ids = set(), set()
    for choice in answer.choices:
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        call_id, name, arguments = function_of(choice.message)
        assert fits(name, arguments)
        names.add(name)
        ids.add(call_id)
    assert len(ids) == 3
    assert names == {"order"} if tool_choice == NAMED else names <= SCHEMAS.keys()


@pytest.mark.parametrize("tool_choice", [NAMED, "required"])
def test_streamed_as_whole(client: OpenAI, tool_choice: Any) -> None:
    """By the client's own accumulator: id and name once, then arguments."""
    asked = {"model": "red", "tool_choice": tool_choice, "seed": 2, "n": 2, **ASKED}
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds and "content.delta" not in kinds
    for one, other in zip(whole.choices, streamed.choices, strict=True):
        _, *wanted = function_of(one.message)
        assert fits(*wanted)
        assert list(function_of(other.message)[1:]) == wanted
        assert other.finish_reason == one.finish_reason == "tool_calls"


def test_cut_short(client: OpenAI) -> None:
    """Half a call is no call: the reason says so. Before its name there is none at all."""
    create = client.chat.completions.create
    answers = [
        create(model="tiny", tool_choice=choice, **ASKED | {"max_tokens": num_tokens})
        for choice, num_tokens in ((NAMED, 4), ("required", 4))
    ]
    assert {one.choices[0].finish_reason for one in answers} == {"length"}
    named, unnamed = (one.choices[0].message for one in answers)
    assert function_of(named)[2].startswith("{")
    assert (unnamed.content, unnamed.tool_calls) == ("", None)


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object", "properties": {}}])
def test_a_function_without_parameters(client: OpenAI, parameters: Any) -> None:
    function: Any = {"name": "now"} | ({} if parameters is None else {"parameters": parameters})
    answer = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        tools=[{"type": "function", "function": function}],
        tool_choice="required",
        max_tokens=60,
    )
    assert json.loads(function_of(answer.choices[0].message)[2]) == {}


def test_what_cannot_be_followed_is_named(client: OpenAI) -> None:
    bad = {"name": "f", "parameters": {"type": "object", "not": {}}}
    for tools, place in (([bad], "#"), ([bad, {"name": "g"}], "#/$defs/f")):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(
                model="tiny",
                messages=MESSAGES,
                tools=[{"type": "function", "function": function} for function in tools],
                tool_choice="required",
            )
        assert refused.value.param == "tools"
        assert f"{place}: 'not' is not supported" in refused.value.message


def test_functions_are_counted_and_shown_to_the_tokenizer_alike(server: Server) -> None:
    """A template without a place for tools refuses them where the model may choose."""
    body = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS}
    for path, more in (("/v1/chat/completions", {}), ("/tokenize", {"tool_choice": "required"})):
        assert server.call(path, body | more).error["param"] == "tools"
    assert server.call("/tokenize", body | {"tool_choice": "none"}).status == 200


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_a_call_in_pieces(size: int) -> None:
    arguments = '{"a": "}\\"{", "b": [{}, {"c": "\\\\"}]}'
    named = '\n{ "name" : "f_1" ,\n"arguments": ' + arguments + " \n}\n"
    for name, text in (("f_1", arguments), (None, named)):
        call = ForcedCall(name)
        cut = [text[at : at + size] for at in range(0, len(text), size)]
        parts = [part for part in map(call.feed, cut) if part is not None]
        assert [part.get("id") is not None for part in parts] == [True] + [False] * (len(parts) - 1)
        assert parts[0]["function"]["name"] == "f_1"
        assert "".join(part["function"]["arguments"] for part in parts) == arguments
        assert call.is_whole


def function(name: Any = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name} | more}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        ({"tool_choice": NAMED, "tools": [function()]}, "tool_choice"),
        ({"tool_choice": "any", "tools": [function()]}, "tool_choice"),
        ({"tool_choice": {"type": "function"}, "tools": [function()]}, "tool_choice.function"),
        ({"tool_choice": {"type": "allowed_tools"}, "tools": [function()]}, "tool_choice"),
        ({"tools": [function("a.b")]}, "tools[0].function.name"),
        ({"tools": [function("a" * 65)]}, "tools[0].function.name"),
        ({"tools": [function(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        (
            {
                "tools": [function()],
                "tool_choice": "required",
                "structured_outputs": {"regex": "a"},
            },
            "structured_outputs",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_refusals(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(EngineError) as refused:
        parse_tools(Fields(fields))
    assert refused.value.param == param


def test_a_value_that_looks_like_a_reference_stays_one() -> None:
    """Where several functions may be called their schemas move, and references with them."""
    quoted = {"$ref": "#/$defs/Size"}
    schema = {"properties": {"a": {"const": quoted}, "b": quoted}, "$defs": {"Size": {}}}
    tools = [function("f", parameters=schema), function("g")]
    constraint = parse_tools(Fields({"tools": tools, "tool_choice": "required"})).constraint
    assert constraint is not None
    moved = json.loads(constraint.text)["$defs"]["f"]["properties"]
    assert moved == {"a": {"const": quoted}, "b": {"$ref": "#/$defs/f/$defs/Size"}}
