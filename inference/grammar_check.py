"""What may go to the grammar compiler: texts of bounded size, and no JSON Schema that it would keep
in part only. It passes over keywords that it does not know; a client who sent them counts on them.
"""

import json
import re
from collections.abc import Container, Iterator
from typing import Any

from inference.repetition import num_positions
from inference.request import Constraint

# A compilation's time grows with the text, in places as its square.
MAX_SCHEMA_CHARS = 64 << 10
MAX_PATTERN_CHARS = 16 << 10
# Of all patterns of a text, repetitions written out.
MAX_POSITIONS = 20_000
MAX_DEPTH = 64

SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SCHEMAS = ("items", "additionalProperties")
# Never more than remarks.
NOTES = frozenset(
    (
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "$schema",
        "$id",
        "$defs",
        "definitions",
        "discriminator",
    )
)
UNSUPPORTED = (
    "$anchor",
    "$dynamicRef",
    "$recursiveRef",
    "additionalItems",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
)
# What the compiler counts with; it passes over others.
MAX_MULTIPLE = 1024
# Looked at alone by the compiler: what stands beside them is not kept.
ALONE = ("$ref", "anyOf", "oneOf", "allOf")
STRING = ("pattern", "format", "minLength", "maxLength")
OPENERS = frozenset(("additionalProperties", "patternProperties"))
NUMBER = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
TYPES |= {list: "array", dict: "object"}

# A class of all but some, an escape, or a character.
PATTERN_PART = re.compile(
    r"\[\^(?:\\.|[^\]\\])*\]"
    r"|\\(?:x(?P<code2>[0-9A-Fa-f]{2})|u(?P<code4>[0-9A-Fa-f]{4})|u\{(?P<code>[0-9A-Fa-f]{1,6})\}"
    r"|(?P<named>.))|(?P<plain>.)",
    re.DOTALL,
)

Place = tuple[str, Any]


def check_constraint(constraint: Constraint) -> None:
    """Raises ValueError: what is too large or would not be kept, and where."""
    if constraint.kind not in ("json_object", "json_schema", "regex", "grammar"):
        raise ValueError(f"its kind is {constraint.kind!r}")
    limit = MAX_SCHEMA_CHARS if constraint.kind == "json_schema" else MAX_PATTERN_CHARS
    if len(constraint.text) > limit:
        raise ValueError(f"it has {len(constraint.text)} characters; at most {limit}")
    if "\0" in constraint.text:
        raise ValueError("it has a NUL character")
    if constraint.kind == "json_schema":
        _check_schema(_read(constraint.text))
    else:
        _check_positions(num_positions(constraint.text, constraint.kind == "grammar"))


def closed(text: str) -> str:
    """The schema with objects that name their properties and say nothing of others closed: OpenAI's
    strict form. Open, the compiler's time grows as the square of their number. A format beside a
    pattern is left out: for the standard it is a remark (zod writes both), and the compiler would
    keep it alone.
    """
    root = _read(text)
    for _, schema in _walk(root):
        if not isinstance(schema, dict):
            continue
        if schema.get("properties") and not schema.keys() & OPENERS:
            schema["additionalProperties"] = False
        if "pattern" in schema:
            schema.pop("format", None)
    return json.dumps(root, ensure_ascii=False)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the schema is not JSON: {error}") from error


def _check_positions(num: int) -> None:
    if num > MAX_POSITIONS:
        message = f"its repetitions, written out, have {num} places"
        raise ValueError(f"{message}; at most {MAX_POSITIONS}")


def _check_schema(root: Any) -> None:
    num = 0
    schemas = dict(_walk(root))
    for place, schema in schemas.items():
        if isinstance(schema, bool):
            continue
        if not isinstance(schema, dict):
            raise ValueError(f"{place}: a schema is an object or a boolean")
        _check_keywords(place, schema)
        _check_reference(place, schema, schemas)
        _check_strings_and_numbers(place, schema)
        _check_values(place, schema)
        _check_object(place, schema)
        for pattern in (schema.get("pattern", ""), *schema.get("patternProperties", ())):
            _check_pattern(place, pattern)
            num += num_positions(pattern, False)
    _check_positions(num)


def _walk(root: Any) -> Iterator[Place]:
    """(JSON pointer, schema) of every subschema."""
    stack: list[tuple[str, Any, int]] = [("#", root, 0)]
    while stack:
        place, schema, depth = stack.pop()
        yield place, schema
        if depth > MAX_DEPTH:
            raise ValueError(f"{place[:200]}: deeper than {MAX_DEPTH} levels")
        if isinstance(schema, dict):
            stack += [(f"{place}/{name}", child, depth + 1) for name, child in _children(schema)]


def _children(schema: dict[str, Any]) -> Iterator[Place]:
    for key in SCHEMA_MAPS:
        for name, child in _typed(schema, key, dict, "an object").items():
            yield f"{key}/{name.replace('~', '~0').replace('/', '~1')}", child
    for key in SCHEMA_LISTS:
        for number, child in enumerate(_typed(schema, key, list, "an array")):
            yield f"{key}/{number}", child
    yield from ((key, schema[key]) for key in SCHEMAS if key in schema)
    if isinstance(names := schema.get("propertyNames"), dict):
        yield "propertyNames", {"type": "string"} | names


def _typed(schema: dict[str, Any], key: str, kind: type, name: str) -> Any:
    value = schema.get(key, kind())
    if not isinstance(value, kind):
        raise ValueError(f"'{key}' must be {name}")
    return value


def _check_keywords(place: str, schema: dict[str, Any]) -> None:
    for key in UNSUPPORTED:
        if key in schema and not _says_nothing(key, schema[key]):
            raise ValueError(f"{place}: '{key}' is not supported")
    for key in ALONE:
        beside = schema.keys() - NOTES - {key}
        if key in schema and beside:
            raise ValueError(f"{place}: '{key}' beside '{min(beside)}' is not supported")
    if len(schema.get("allOf", ())) > 1:
        raise ValueError(f"{place}: 'allOf' with more than one schema is not supported")
    if schema.get("patternProperties") and schema.get("additionalProperties") is not False:
        message = "'patternProperties' needs 'additionalProperties' to be false"
        raise ValueError(f"{place}: {message}")


def _says_nothing(key: str, value: Any) -> bool:
    """An empty "not" or "contains" does: it matches everything, so they ask for something."""
    if key in ("not", "contains"):
        return False
    if key == "uniqueItems":
        return value is False
    return value == {} or (value is True and key.startswith("unevaluated"))


def _check_reference(place: str, schema: dict[str, Any], places: Container[str]) -> None:
    target = schema.get("$ref", "#")
    if not isinstance(target, str) or target not in places:
        shown = str(target)[:100]
        raise ValueError(f"{place}: '$ref' {shown!r} leads to no schema inside this one")


def _types(schema: dict[str, Any]) -> set[str]:
    value = schema.get("type", [])
    return {value} if isinstance(value, str) else set(map(str, value))


def _check_strings_and_numbers(place: str, schema: dict[str, Any]) -> None:
    types = _types(schema)
    for keys, wanted in ((STRING, {"string"}), (NUMBER, {"integer", "number"})):
        for key in keys:
            if key in schema and not types & wanted:
                names = " or ".join(sorted(wanted))
                raise ValueError(f"{place}: '{key}' needs the type {names}")
    factor = schema.get("multipleOf", 1)
    if not (type(factor) is int and 0 < factor <= MAX_MULTIPLE) or (
        "multipleOf" in schema and "number" in types
    ):
        wanted_here = f"the type integer, and to be a whole number up to {MAX_MULTIPLE}"
        raise ValueError(f"{place}: 'multipleOf' needs {wanted_here}")
    form = [key for key in STRING if key in schema]
    if "pattern" in form and "format" in form:
        form.remove("format")
    if len(form) > 1 and form != ["minLength", "maxLength"]:
        raise ValueError(f"{place}: '{form[0]}' beside '{form[1]}' is not supported")


def _check_pattern(place: str, pattern: Any) -> None:
    """The compiler writes a pattern's characters as they are, where JSON would have to escape."""
    if not isinstance(pattern, str):
        raise ValueError(f"{place}: 'pattern' must be a string")
    if any(map(_is_escaped_in_json, PATTERN_PART.finditer(pattern))):
        message = "with a quote, a backslash or a control character is not supported"
        raise ValueError(f"{place}: 'pattern' {message}")


def _is_escaped_in_json(part: re.Match[str]) -> bool:
    code = part["code2"] or part["code4"] or part["code"]
    # \n is a line's end, \" a quote; \d is a class, which leaves out what it must.
    named = "\n" if (part["named"] or "-") in "nrfvc0" else part["named"]
    char = chr(min(int(code, 16), 0x10FFFF)) if code else named or part["plain"] or "-"
    return char in '"\\' or char < " "


def _check_values(place: str, schema: dict[str, Any]) -> None:
    """enum and const are taken as they are; beside them only a type that they have is kept."""
    key = "enum" if "enum" in schema else "const"
    if key not in schema:
        return
    beside = schema.keys() - NOTES - {"enum", "const", "type"}
    if beside:
        raise ValueError(f"{place}: '{key}' beside '{min(beside)}' is not supported")
    values = _typed(schema, "enum", list, "an array") if key == "enum" else [schema["const"]]
    types = _types(schema)
    for value in values:
        names = {TYPES[type(value)], *({"number"} if isinstance(value, int) else ())}
        if types and not types & names:
            raise ValueError(f"{place}: '{key}' has a value that is no {' or '.join(types)}")


def _check_object(place: str, schema: dict[str, Any]) -> None:
    properties = schema.get("properties", {})
    for name in _typed(schema, "required", list, "an array"):
        if name not in properties:
            message = f"'required' has {str(name)[:100]!r}, which 'properties' has not"
            raise ValueError(f"{place}: {message}")
