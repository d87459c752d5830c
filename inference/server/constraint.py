"""response_format (OpenAI's) and structured_outputs (vLLM's) → what the answer must be."""

import json
from typing import Any, Literal

from inference.request import Constraint
from inference.server.fields import Fields, invalid, unsupported, wrong_type

CONSTRAINT_FIELDS = frozenset(("response_format", "structured_outputs"))
KINDS = ("json", "json_object", "regex", "choice", "grammar")
MAX_CHOICES = 1024


def parse_constraint(body: Fields) -> Constraint | None:
    """Raises EngineError naming the field at fault. The compiler judges the text itself later."""
    wanted = _response_format(body), _structured_outputs(body)
    if None not in wanted:
        message = "'structured_outputs' and 'response_format' differ; send one of them."
        raise invalid("structured_outputs", message)
    return wanted[0] or wanted[1]


def _response_format(body: Fields) -> Constraint | None:
    form = body.obj("response_format")
    if form is None:
        return None
    kind = form.required_string("type")
    form.refuse_others(("type", "json_schema") if kind == "json_schema" else ("type",))
    if kind == "text":
        return None
    if kind == "json_object":
        return Constraint("json_object")
    if kind == "json_schema":
        return _json_schema(form)
    message = '\'response_format.type\' must be "text", "json_object" or "json_schema".'
    raise unsupported("response_format.type", message)


def _json_schema(form: Fields) -> Constraint:
    named = form.obj("json_schema")
    if named is None:
        place = form.name("json_schema")
        raise invalid(place, f"Missing required parameter: '{place}' (an object).")
    named.refuse_others(("name", "description", "schema", "strict"))
    named.required_string("name")
    named.string("description", None)
    # Followed to the letter either way.
    named.boolean("strict", False)
    schema = named.obj("schema")
    if schema is None:
        place = named.name("schema")
        raise invalid(place, f"Missing required parameter: '{place}' (a JSON Schema).")
    return Constraint("json_schema", _written(schema.values))


def _structured_outputs(body: Fields) -> Constraint | None:
    asked = body.obj("structured_outputs")
    if asked is None:
        return None
    asked.refuse_others(KINDS)
    given = [key for key in KINDS if asked.get(key) is not None]
    if len(given) != 1:
        message = f"'structured_outputs' must have exactly one of {', '.join(KINDS)}."
        raise invalid("structured_outputs", message)
    key, param = given[0], "structured_outputs"
    if key == "json_object":
        if not asked.boolean(key, False):
            raise invalid(asked.name(key), f"'{asked.name(key)}' must be true.")
        return Constraint("json_object", param=param)
    if key == "json":
        return Constraint("json_schema", _schema_text(asked), param=param)
    if key == "choice":
        return Constraint("grammar", _choices(asked), param=param)
    kind: Literal["regex", "grammar"] = "regex" if key == "regex" else "grammar"
    return Constraint(kind, asked.required_string(key), param=param)


def _schema_text(asked: Fields) -> str:
    """vLLM takes an object or its text."""
    value = asked.get("json")
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise wrong_type(asked.name("json"), "an object or a string", value)
    return _written(value)


def _written(schema: dict[str, Any]) -> str:
    # In the client's order: that is the order in which properties are written.
    return json.dumps(schema, ensure_ascii=False)


def _choices(asked: Fields) -> str:
    choices, place = asked.array("choice") or [], asked.name("choice")
    if not 1 <= len(choices) <= MAX_CHOICES:
        message = f"'{place}' must have 1 to {MAX_CHOICES} strings, but has {len(choices)}."
        raise invalid(place, message)
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise wrong_type(place, "an array of non-empty strings", choice)
    return "root ::= " + " | ".join(map(_literal, choices))


def _literal(text: str) -> str:
    """As a string of the grammar's notation."""
    escaped = "".join(
        f"\\x{ord(char):02x}" if ord(char) < 0x20 or char in '"\\' else char for char in text
    )
    return f'"{escaped}"'
