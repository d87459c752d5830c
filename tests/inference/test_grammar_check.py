"""What the grammar compiler is given, and what it keeps of a JSON Schema: all, or a refusal."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from inference.grammar_check import MAX_POSITIONS, check_constraint
from inference.repetition import num_positions
from inference.request import Constraint
from inference.server.tokenizer import Tokenizer
from tests.tiny import EOS_TOKEN_ID, VOCAB_SIZE

Docs = list[str]
INT = {"type": "integer"}
AB = {"type": "object", "properties": {"a": INT, "b": INT}}


def string(**fields: Any) -> dict[str, Any]:
    return {"type": "string", **fields}


# schema, documents that fit, documents that do not. Each schema is kept or refused.
KEPT: list[tuple[Any, Docs, Docs]] = [
    (True, ["1", "{}"], []),
    ({}, ["1", '{"a":[1]}'], []),
    (INT, ["1", "-7"], ['"a"', "1.5"]),
    ({"type": ["integer", "null"]}, ["1", "null"], ['"a"']),
    ({"type": "integer", "minimum": 5, "exclusiveMaximum": 9}, ["5", "8"], ["4", "9"]),
    ({"type": "number", "minimum": 5.5}, ["6", "5.5"], ["5.4", "5"]),
    ({"type": "integer", "multipleOf": 3}, ["3", "9"], ["4"]),
    (
        {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 100},
        ["7", "98"],
        ["0", "8", "105"],
    ),
    (string(minLength=2, maxLength=3), ['"ab"', '"äöü"'], ['"a"', '"abcd"']),
    (string(pattern="^[a-c]+$"), ['"abc"'], ['"d"']),
    (string(pattern='^[^"]{2}$'), ['"ab"'], ['"abc"']),
    (string(format="date"), ['"2026-11-29"'], ['"2026-13-01"']),
    (string(format="email"), ['"a@b.co"'], ['"x"']),
    (string(format="ipv4"), ['"1.2.3.4"'], ['"300.1.1.1"']),
    ({"enum": [1, "a", None, {"x": 1}]}, ["1", '"a"', "null"], ["2"]),
    ({"type": "string", "enum": ["a", "b"]}, ['"a"'], ['"c"']),
    ({"const": 'a"\\\n'}, [json.dumps('a"\\\n')], ['"a"']),
    ({"type": "array", "items": INT, "minItems": 2, "maxItems": 3}, ["[1,2]"], ["[1]", '["a",1]']),
    ({"type": "array", "minItems": 2}, ["[1,2]"], ["[1]"]),
    ({"type": "array", "prefixItems": [string(), INT]}, ['["a",1]'], ["[1,1]"]),
    (AB | {"required": ["b"]}, ['{"b":1}', '{"a":1,"b":2}'], ["{}", '{"b":"x"}']),
    (AB | {"additionalProperties": False}, ["{}"], ['{"c":1}']),
    ({"type": "object", "additionalProperties": INT}, ['{"z":1}'], ['{"z":"a"}']),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]$"}}, ['{"a":1}'], ['{"AA":1}']),
    ({"type": "object", "minProperties": 2}, ['{"a":1,"b":2}'], ['{"a":1}']),
    ({"anyOf": [INT, string()]}, ["1", '"a"'], ["true"]),
    ({"oneOf": [INT, string()]}, ["1", '"a"'], ["true"]),
    ({"allOf": [INT]}, ["1"], ['"a"']),
    ({"$defs": {"n": INT}, "type": "array", "items": {"$ref": "#/$defs/n"}}, ["[1]"], ['["a"]']),
    (AB | {"properties": {"c": {"$ref": "#"}}, "additionalProperties": False}, ["{}"], ["1"]),
    ({"$defs": {"a/b": INT}, "$ref": "#/$defs/a~1b"}, ["1"], ['"a"']),
]
REFUSED: list[tuple[Any, str]] = [
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": string()}, "contains"),
    (AB | {"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    (AB | {"dependencies": {"a": ["b"]}}, "dependencies"),
    (INT | {"if": {"minimum": 5}, "then": {"maximum": 7}}, "if"),
    ({"not": INT}, "not"),
    ({"type": "object", "not": {}}, "not"),
    ({"type": "array", "contains": {}}, "contains"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    (AB | {"unevaluatedProperties": False}, "unevaluatedProperties"),
    (AB | {"anyOf": [{"required": ["a"]}]}, "anyOf"),
    ({"anyOf": [INT], "minimum": 5}, "anyOf"),
    ({"allOf": [INT, {"type": "integer", "maximum": 7}]}, "allOf"),
    ({"$defs": {"n": INT}, "$ref": "#/$defs/n", "minimum": 5}, "$ref"),
    ({"$ref": "#nn", "$defs": {"n": {"title": "n"}}}, "$ref"),
    ({"$ref": "http://example.com/schema"}, "$ref"),
    ({"$ref": "#/x", "title": "t"}, "$ref"),
    ({"minimum": 5}, "minimum"),
    ({"pattern": "^a$"}, "pattern"),
    (string(pattern="^a$", maxLength=2), "pattern"),
    (string(format="email", maxLength=5), "format"),
    (string(enum=["a", "bb"], maxLength=1), "enum"),
    (string(enum=["a", 1]), "enum"),
    (INT | {"const": "a"}, "const"),
    (AB | {"required": ["zz"]}, "zz"),
    ({"type": "object", "patternProperties": {"^x": INT}}, "patternProperties"),
    ({"properties": [1]}, "properties"),
    ({"anyOf": {}}, "anyOf"),
    ({"items": 5}, "a schema is"),
    (string(pattern='^"$'), "quote"),
    (string(pattern=r"^\\$"), "quote"),
    (string(pattern=r"^[\n]$"), "quote"),
    (string(pattern=r"^\x22$"), "quote"),
    (string(pattern=r"^\u{22}$"), "quote"),
    (string(pattern=r'^\["$'), "quote"),
    (string(pattern=5), "pattern"),
    ({"type": "integer", "multipleOf": 2000}, "multipleOf"),
    ({"type": "number", "multipleOf": 0.5}, "multipleOf"),
    ({"multipleOf": 3}, "multipleOf"),
    (string(pattern="^.{0,30000}$"), "places"),
    ({"type": "array", "prefixItems": [string(pattern="^.{9000}$")] * 3}, "places"),
]


def check(schema: Any) -> None:
    check_constraint(Constraint("json_schema", json.dumps(schema)))


@pytest.fixture(scope="module")
def tokens(base: Path) -> list[bytes]:
    vocabulary = Tokenizer.load(base, None).vocabulary
    return [vocabulary.token_bytes(token_id) for token_id in range(VOCAB_SIZE)]


def fits(tokens: list[bytes], schema: Any, document: str) -> bool:
    """By the compiler, called as the engine calls it."""
    import xgrammar

    from inference.grammar import _compiled

    info = xgrammar.TokenizerInfo(tokens, xgrammar.VocabType.RAW, stop_token_ids=[EOS_TOKEN_ID])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    compiled = _compiled(compiler, Constraint("json_schema", json.dumps(schema)))
    matcher = xgrammar.GrammarMatcher(compiled)
    return matcher.accept_string(document) and matcher.accept_token(EOS_TOKEN_ID)


@pytest.mark.parametrize(("schema", "good", "bad"), KEPT, ids=lambda value: str(value)[:60])
def test_what_is_let_through_is_kept(
    tokens: list[bytes], schema: Any, good: Docs, bad: Docs
) -> None:
    check(schema)
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
    for document in good:
        assert validator.is_valid(json.loads(document)), document
        assert fits(tokens, schema, document), document
    for document in bad:
        assert not validator.is_valid(json.loads(document)), document
        assert not fits(tokens, schema, document), document


@pytest.mark.parametrize(("schema", "reason"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_would_be_lost_is_refused(schema: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=r"#|repetitions|must be") as refused:
        check(
            {"type": "object", "properties": {"deep": schema}} if "$ref" not in schema else schema
        )
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 300


def test_an_object_has_the_properties_it_names(tokens: list[bytes]) -> None:
    """As with vLLM and OpenAI's strict; one that says more of others, or names none, is open."""
    assert not fits(tokens, AB, '{"a":1,"c":2}')
    assert fits(tokens, AB | {"additionalProperties": True}, '{"a":1,"c":2}')
    assert fits(tokens, {"type": "object"}, '{"c":{"d":[]}}')
    nested = {"type": "array", "items": {"$ref": "#/$defs/x"}, "$defs": {"x": AB}}
    assert not fits(tokens, nested, '[{"c":1}]')


def test_depth_and_size() -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    with pytest.raises(ValueError, match="deeper than 64 levels"):
        check(deep)
    with pytest.raises(ValueError, match="not JSON"):
        check_constraint(Constraint("json_schema", "[" * 60_000))
    with pytest.raises(ValueError, match="at most 65536"):
        check({"enum": ["x" * 70_000]})
    with pytest.raises(ValueError, match="at most 16384"):
        check_constraint(Constraint("regex", "x" * 17_000))


@pytest.mark.parametrize(
    ("text", "num"),
    [
        ("abc", 3),
        ("a{3}", 3),
        ("(ab){3}", 6),
        ("((a{10}b){10}c){10}", 10 * (10 * 11 + 1)),
        ("a{2}{3}", 6),
        ("[a-z]{2,5}|x{4,}", 9),
        (r"\{5\}", 3),
        ("[{3}]", 1),
        (".{0,1000000000}", 10**9),
        (".{ 1 , 0005 }", 5),
        (".{1,%s}" % ("9" * 5000), 10**9),
        ("a{0}", 1),
        (")a{3}", 3),
        ("a{,5}", 5),
    ],
)
def test_positions(text: str, num: int) -> None:
    assert num_positions(text, False) == num


@pytest.mark.parametrize("text", [".{0,999999999}", "((.{999}){999}){999}", "(a{50000}){0,9}"])
def test_too_many_positions(text: str) -> None:
    assert num_positions(text, False) > MAX_POSITIONS
    with pytest.raises(ValueError, match="places"):
        check_constraint(Constraint("regex", text))


def test_strings_of_a_grammar_are_one() -> None:
    assert num_positions('"x{9}"', True) == 1
    assert num_positions('"xy"{9}', True) == 9
