import json

import pytest

from inference.errors import EngineError
from inference.server.body import MAX_DEPTH, parse_object

BAD = {
    "empty": b"",
    "blank": b" \n",
    "cut off": b'{"model":',
    "array": b"[]",
    "string": b'"x"',
    "null": b"null",
    "NaN": b'{"temperature": NaN}',
    "Infinity": b'{"temperature": -Infinity}',
    "invalid UTF-8": b'{"a": "\xff"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "lone surrogate": b'{"a": "\\ud800"}',
    "lone surrogate in a key": b'{"\\udfff": 1}',
    "lone surrogate deep down": b'{"a": [[{"b": ["x", "\\ud800"]}]]}',
    "100,000 brackets": b'{"a": ' + b"[" * 100_000,
    "100,000 closed brackets": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a little too deep": b'{"a": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
    "5000 digits": b'{"a": ' + b"9" * 5000 + b"}",
    "twice": b'{"model": "a", "model": "b"}',
    "twice deep down": b'{"a": {"b": 1, "b": 1}}',
    "two objects": b"{}{}",
}


def test_it_works() -> None:
    assert parse_object('{"a": ["é", 1.5, null]}'.encode()) == {"a": ["é", 1.5, None]}


@pytest.mark.case("C113")
@pytest.mark.parametrize("raw", BAD.values(), ids=BAD.keys())
def test_a_bad_body_is_a_short_400(raw: bytes) -> None:
    """Peers crashed, or echoed the whole input back."""
    with pytest.raises(EngineError) as refused:
        parse_object(raw)
    assert refused.value.status == 400
    assert len(refused.value.message) < 200


def test_a_pair_of_surrogates_is_a_character() -> None:
    assert parse_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "😀"}


def test_depth_up_to_the_limit_is_fine() -> None:
    depth = MAX_DEPTH - 1
    raw = b'{"a": ' + b"[" * depth + b"]" * depth + b"}"
    assert parse_object(raw) == json.loads(raw)
