"""The messages of a chat, checked and brought into the shape that chat templates read."""

import json
from typing import Any

from inference.server.fields import Fields, invalid, object_at, unsupported, wrong_type

MAX_MESSAGES = 4096
ROLES = ("system", "developer", "user", "assistant", "tool")
MESSAGE_FIELDS = frozenset({"role", "content", "name", "refusal", "audio", "annotations"})
# parsed: what OpenAI's clients read out of an answer's content, and send back beside it.
ASSISTANT_FIELDS = MESSAGE_FIELDS | {"tool_calls", "function_call", "reasoning_content", "parsed"}
FIELDS_BY_ROLE = {"assistant": ASSISTANT_FIELDS, "tool": MESSAGE_FIELDS | {"tool_call_id"}}


def parse_messages(body: Fields) -> list[dict[str, Any]]:
    """Raises EngineError naming the message and field at fault."""
    values = body.array("messages")
    if not values:
        message = "Missing required parameter: 'messages' (a non-empty array)."
        raise invalid("messages", message)
    if len(values) > MAX_MESSAGES:
        raise invalid("messages", f"'messages' has {len(values)} entries; at most {MAX_MESSAGES}.")
    return [
        _message(object_at(value, f"messages[{number}]")) for number, value in enumerate(values)
    ]


def _message(fields: Fields) -> dict[str, Any]:
    role = _role(fields)
    fields.refuse_others(FIELDS_BY_ROLE.get(role, MESSAGE_FIELDS))
    for key in ("audio", "function_call"):
        if fields.get(key) is not None:
            raise unsupported(fields.name(key), f"'{fields.name(key)}' is not supported.")
    # Templates know no developer role: it is the newer name of system.
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    tool_calls = _tool_calls(fields)
    message["content"] = _content(fields, may_be_null=bool(tool_calls))
    if tool_calls:
        message["tool_calls"] = tool_calls
    for key in ("name", "tool_call_id", "reasoning_content"):
        value = fields.string(key, None)
        if value is not None:
            message[key] = value
    return message


def _role(fields: Fields) -> str:
    role = fields.required_string("role")
    if role not in ROLES:
        name = fields.name("role")
        message = f"Invalid value for '{name}': {role[:50]!r}; expected one of {', '.join(ROLES)}."
        raise invalid(name, message)
    return role


def _content(fields: Fields, may_be_null: bool) -> str | None:
    value, name = fields.get("content"), fields.name("content")
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        return "".join(
            _text_part(object_at(part, f"{name}[{number}]")) for number, part in enumerate(value)
        )
    if value is None and may_be_null:
        return None
    if value is None and fields.get("refusal") is not None:
        return fields.string("refusal", "")
    raise wrong_type(name, "a string or a non-empty array of text parts", value)


def _text_part(part: Fields) -> str:
    kind = part.required_string("type")
    if kind not in ("text", "refusal"):
        name = part.name("type")
        raise unsupported(name, f"Content of type {kind[:50]!r} is not supported; only text is.")
    part.refuse_others({"type", kind})
    text = part.string(kind, None)
    if text is None:
        raise invalid(part.name(kind), f"Missing required parameter: '{part.name(kind)}'.")
    return text


def _tool_calls(fields: Fields) -> list[dict[str, Any]]:
    if "tool_calls" not in fields.values:
        return []
    calls = fields.array("tool_calls") or []
    name = fields.name("tool_calls")
    return [_tool_call(object_at(call, f"{name}[{number}]")) for number, call in enumerate(calls)]


def _tool_call(call: Fields) -> dict[str, Any]:
    function = call.obj("function")
    if function is None or call.string("type", "function") != "function":
        raise invalid(call.name("function"), f"'{call.name('function')}' must be an object.")
    parsed = {"name": function.required_string("name"), "arguments": _arguments(function)}
    return {"id": call.string("id", ""), "type": "function", "function": parsed}


def _arguments(function: Fields) -> dict[str, Any]:
    """OpenAI carries arguments as JSON in a string; templates read an object."""
    raw, name = function.string("arguments", ""), function.name("arguments")
    try:
        value = json.loads(raw or "{}")
    except (ValueError, RecursionError) as error:
        raise invalid(name, f"'{name}' must be a JSON object in a string.") from error
    if not isinstance(value, dict):
        raise invalid(name, f"'{name}' must be a JSON object in a string.")
    return value
