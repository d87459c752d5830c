"""tools and tool_choice: the functions that the template shows, and the call that must come."""

import json
import re
from dataclasses import dataclass
from typing import Any

from inference.request import Constraint
from inference.server.fields import Fields, invalid, object_at, unsupported

Json = dict[str, Any]

# OpenAI's. Names also become places in a schema, which have no escapes.
FUNCTION_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Keywords whose values are an answer's.
QUOTING = frozenset(("const", "enum", "default", "examples"))
CHOICES = '"none", "auto", "required" or {"type": "function", "function": {"name": …}}'


@dataclass(frozen=True)
class Tools:
    """shown: for the template; None for none. forced: the answer is one call of one of these
    functions, held to constraint; without them the model may answer as it likes, and make so many
    calls (None: any number).
    """

    shown: list[Json] | None = None
    max_calls: int | None = None
    forced: tuple[str, ...] = ()
    constraint: Constraint | None = None


def parse_tools(body: Fields) -> Tools:
    """Raises EngineError naming the field at fault.

    With "auto" the model may answer with calls in its own notation (chosen_calls.py). A call that
    must come is written under a grammar, and so is one.
    """
    max_calls = None if body.boolean("parallel_tool_calls", True) else 1
    functions = {}
    for number, value in enumerate(body.array("tools") or []):
        function = _function(object_at(value, f"tools[{number}]"))
        functions[function["name"]] = function
    choice = body.get("tool_choice")
    if choice == "none" or not (functions or _is_forcing(choice)):
        return Tools()
    shown = [{"type": "function", "function": function} for function in functions.values()]
    if choice in (None, "auto"):
        return Tools(shown, max_calls)
    forced = _forced(body, functions)
    if body.get("structured_outputs") is not None:
        message = "'structured_outputs' says what a text is, 'tool_choice' asks for a call."
        raise invalid("structured_outputs", message)
    return Tools(shown, 1, tuple(forced), _constraint(forced))


def _function(tool: Fields) -> Json:
    kind = tool.required_string("type")
    if kind != "function":
        raise unsupported(tool.name("type"), f"Tools of type {kind[:50]!r} are not supported.")
    function = tool.obj("function")
    if function is None:
        place = tool.name("function")
        raise invalid(place, f"Missing required parameter: '{place}'.")
    if not FUNCTION_NAME.fullmatch(function.required_string("name")):
        place = function.name("name")
        raise invalid(place, f"'{place}' must be 1 to 64 of A-Z, a-z, 0-9, _ and -.")
    function.obj("parameters")
    return function.values


def _is_forcing(choice: object) -> bool:
    return choice not in (None, "auto", "none")


def _forced(body: Fields, functions: dict[str, Json]) -> dict[str, Json]:
    """The functions of which one must be called."""
    choice = body.get("tool_choice")
    if choice == "required":
        if not functions:
            raise invalid("tool_choice", "'tool_choice' \"required\" needs 'tools'.")
        return functions
    if not isinstance(choice, dict) or choice.get("type") != "function":
        raise unsupported("tool_choice", f"'tool_choice' must be {CHOICES}.")
    named = object_at(choice.get("function"), "tool_choice.function")
    name = named.required_string("name")
    if name not in functions:
        message = f"'tool_choice' names {name[:80]!r}, which is not in 'tools'."
        raise invalid("tool_choice", message)
    return {name: functions[name]}


def _constraint(functions: dict[str, Json]) -> Constraint:
    """Of one function its arguments alone; of several {"name", "arguments"}, in this order."""
    schemas = {name: _arguments(function) for name, function in functions.items()}
    if len(schemas) == 1:
        [schema] = schemas.values()
    else:
        schema = {
            "anyOf": [_call(name) for name in schemas],
            "$defs": {name: _moved(one, f"#/$defs/{name}") for name, one in schemas.items()},
        }
    return Constraint("json_schema", json.dumps(schema, ensure_ascii=False), "tools")


def _arguments(function: Json) -> Json:
    """Always an object; a function that names no parameters has none."""
    schema = {"type": "object"} | (function.get("parameters") or {})
    if schema.get("properties") or schema.keys() & {"$ref", "anyOf", "oneOf", "allOf"}:
        return schema
    return {"additionalProperties": False} | schema


def _call(name: str) -> Json:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/{name}"}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """The schema where its root is at place: references lead on to what they meant. Values that it
    quotes are no schemas.
    """
    if isinstance(schema, list):
        return [_moved(one, place) for one in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {
        key: value if key in QUOTING else _moved(value, place) for key, value in schema.items()
    }
    target = schema.get("$ref")
    if isinstance(target, str) and target.startswith("#"):
        moved["$ref"] = place + target[1:]
    return moved
