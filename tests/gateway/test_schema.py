"""What of a body the gateway acts on, and how it refuses the rest."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.openai.schema import (
    MAX_JSON_DEPTH,
    TEMPLATE_OVERHEAD_TOKENS,
    Endpoint,
    parse_ask,
    parse_json,
)
from tenants.errors import ApiError

MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT: Endpoint = "chat.completions"


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "bot", "messages": MESSAGES} | fields


def refused(body: dict[str, Any], endpoint: Endpoint = CHAT) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_ask(endpoint, body)
    assert (caught.value.status, caught.value.type) == (400, "invalid_request_error")
    return caught.value


def test_it_works() -> None:
    ask = parse_ask(CHAT, chat(stream=True, max_tokens=7, n=2, temperature=0.1))
    assert (ask.model, ask.is_stream, ask.max_tokens, ask.num_sequences) == ("bot", True, 7, 2)
    assert ask.body["temperature"] == 0.1


@pytest.mark.case("C113")
@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"  ", b'{"model":', b"[]", b'"x"', b"null", b'{"t": NaN}', b'{"a": "\\ud800"}'),
        *(b"\xff\xfe", b'{"a": "\xc3"}', b"[" * 100_000),
        b'{"a":' + b"[" * 200 + b"]" * 200 + b"}",
        *(b'{"a":1,"a":1}', b'{"a" : 1, "b": [], "a" :2}', b'{"a":[{"b":1,"\\u0062":2}]}'),
        *(b'{"a":{"\\\\":1,"\\\\":2}}', b'{"a":1e5,"a":1}'),
        b'{"a":' + b"[" * 1000 + b"]" * 1000 + b',"a":1}',
    ],
)
def test_bad_json(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_json(raw)
    assert caught.value.status == 400
    # A short message, never the input echoed.
    assert len(caught.value.message) < 250


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.case("C113")
@given(st.dictionaries(st.text(), JSON), st.sampled_from([None, 0, 2]), st.booleans(), st.text())
def test_names_come_once_however_it_is_written(
    body: dict[str, Any], indent: int | None, is_ascii: bool, name: str
) -> None:
    """By a writer with its own spaces and escapes; with one name more than that it is refused."""
    raw = json.dumps(body, indent=indent, ensure_ascii=is_ascii)
    assert parse_json(raw) == parse_json(raw.encode()) == orjson.loads(raw)
    name = json.dumps(name, ensure_ascii=is_ascii)
    twice = f'{{"rest": {raw}, "more": [{{{name}:1,{name} : 2}}]}}'
    with pytest.raises(ApiError, match="twice in one object"):
        parse_json(twice)


@pytest.mark.parametrize("endpoint", ["chat.completions", "completions"])
def test_too_many_choices(endpoint: Endpoint) -> None:
    """What our engine takes, so that nothing is reserved for what it would refuse."""
    assert parse_ask(endpoint, chat(prompt="Hi", n=16)).num_sequences == 16
    for name in ("n", "best_of"):
        error = refused(chat(prompt="Hi") | {name: 17}, endpoint)
        assert (error.param, error.message) == (name, f"{name}: expected 1 to 16, got 17.")


@given(st.integers(1, 2 * MAX_JSON_DEPTH))
def test_the_depth_limit_is_exact(depth: int) -> None:
    body: Any = 1
    for _ in range(depth):
        body = {"a": body} if depth % 2 else [body]
    raw = orjson.dumps(body if isinstance(body, dict) else {"a": body})
    num_levels = depth + (0 if isinstance(body, dict) else 1)
    if num_levels <= MAX_JSON_DEPTH:
        parse_json(raw)
    else:
        with pytest.raises(ApiError, match="deeper than"):
            parse_json(raw)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 3}, "model"),
        ({"model": ""}, "model"),
        ({"model": "x" * 300}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": {"other": 1}}, "stream_options.other"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"lora_path": 1}, "lora_path"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    assert refused(chat(**fields)).param == param


@pytest.mark.case("C102")
def test_null_is_absent() -> None:
    names = (
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "tools",
        "stop",
    )
    with_nulls = parse_ask(CHAT, chat(**dict.fromkeys(names)))
    assert with_nulls.max_tokens is None and with_nulls.num_sequences == 1
    assert not with_nulls.is_stream


def test_fields_of_ours_are_not_a_clients() -> None:
    ask = parse_ask(CHAT, chat(cache_salt="x", lora_path="bot", request_id="y", user="me"))
    assert set(ask.body) == {"model", "messages", "user"}
    assert ask.lora_path == "bot"


@given(st.lists(st.text(max_size=50), min_size=1, max_size=5))
def test_the_prompt_bound_is_never_below_its_bytes(texts: list[str]) -> None:
    messages = [{"role": "user", "content": text} for text in texts]
    ask = parse_ask(CHAT, chat(messages=messages))
    # <|im_start|>, the role, a line break, <|im_end|>: at most 8 tokens a turn.
    num_bytes = sum(len(text.encode()) + 8 for text in texts)
    assert ask.num_prompt_tokens_bound >= num_bytes + TEMPLATE_OVERHEAD_TOKENS


@pytest.mark.parametrize(
    ("prompt", "num_prompts", "bound"),
    [
        ("héllo", 1, 7),
        (["ab", "c"], 2, 5),
        ([1, 2, 3], 1, 4),
        ([[1, 2], [3]], 2, 5),
    ],
)
def test_prompts_of_completions(prompt: object, num_prompts: int, bound: int) -> None:
    ask = parse_ask("completions", {"model": "bot", "prompt": prompt, "n": 3})
    assert (ask.num_sequences, ask.num_prompt_tokens_bound) == (3 * num_prompts, bound)


def test_an_empty_array_is_called_one() -> None:
    assert refused(chat(messages=[])).message.endswith("non-empty array, got an empty array.")
    assert refused(chat(messages=7)).message.endswith("non-empty array, got a number.")


@pytest.mark.parametrize("prompt", [None, [], {}, 5, [None], ["a", 1]])
def test_bad_prompts(prompt: object) -> None:
    assert refused({"model": "bot", "prompt": prompt}, "completions").param == "prompt"


def test_echo_without_completion() -> None:
    body = {"model": "bot", "prompt": "a", "max_tokens": 0}
    assert parse_ask("completions", body).max_tokens == 0
