"""Frames from a replica to a client, byte for byte; golden files hold both sides."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion

from gateway.openai.relay import (
    MAX_FRAME_BYTES,
    BrokenStream,
    DigestMismatch,
    Folder,
    Identity,
    Relay,
    SseParser,
    Tokens,
    sse,
)
from gateway.openai.schema import Ask, parse_ask
from tenants.errors import ApiError
from tests.gateway.sdk.shapes import strict

GOLDEN_DIR = Path(__file__).parent / "golden"
DIGEST = "d" * 64
IDENTITY = Identity("0123456789abcdef", "support-bot@3", DIGEST)


def ask(**fields: Any) -> Ask:
    body = {"model": "support-bot", "messages": [{"role": "user", "content": "Hi"}]}
    return parse_ask("chat.completions", body | fields)


def payloads(name: str) -> list[bytes]:
    found = list(SseParser().feed((GOLDEN_DIR / name).read_bytes()))
    assert found.pop() == b"[DONE]"
    return found


def relayed(name: str, asked: Ask) -> bytes:
    relay = Relay(asked, IDENTITY)
    chunks = [relay.for_client(relay.decode(payload)) for payload in payloads(name)]
    frames = [sse(chunk) for chunk in chunks if chunk is not None]
    if asked.include_usage:
        frames.append(sse(relay.usage_chunk()))
    return b"".join(frames)


def folded(name: str, asked: Ask) -> dict[str, Any]:
    relay, folder = Relay(asked, IDENTITY), Folder(asked.endpoint)
    for payload in payloads(name):
        if chunk := relay.for_client(relay.decode(payload)):
            folder.add(chunk)
    return relay.whole(folder.choices())


STREAM = {"stream": True}
USAGE = STREAM | {"stream_options": {"include_usage": True}}
CONTINUOUS = STREAM | {"stream_options": {"continuous_usage_stats": True}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [(STREAM, "chat-plain.sse"), (USAGE, "chat-usage.sse"), (CONTINUOUS, "chat-continuous.sse")],
)
def test_a_stream_is_relayed_as_asked(fields: dict[str, Any], expected: str) -> None:
    assert relayed("chat-replica.sse", ask(**fields)) == (GOLDEN_DIR / expected).read_bytes()


def test_a_stream_folded_into_one_answer() -> None:
    expected = orjson.loads((GOLDEN_DIR / "chat-whole.json").read_bytes())
    assert folded("chat-replica.sse", ask()) == expected


def test_completions_folded_with_logprobs() -> None:
    asked = parse_ask("completions", {"model": "support-bot", "prompt": ["a", "b"]})
    expected = orjson.loads((GOLDEN_DIR / "completion-whole.json").read_bytes())
    assert folded("completion-replica.sse", asked) == expected


@given(st.lists(st.integers(1, 60), max_size=40), st.booleans())
def test_events_survive_any_split(sizes: list[int], is_crlf: bool) -> None:
    raw = (GOLDEN_DIR / "chat-replica.sse").read_bytes()
    expected = list(SseParser().feed(raw))
    if is_crlf:
        raw = raw.replace(b"\n", b"\r\n")
    parser, found, start = SseParser(), [], 0
    for size in [*sizes, len(raw)]:
        found += parser.feed(raw[start : start + size])
        start += size
    assert found == expected


def test_comments_and_other_fields_are_skipped() -> None:
    raw = b": keep-alive\n\nevent: x\nid: 1\ndata: a\ndata:b\n\ndata: c"
    assert list(SseParser().feed(raw)) == [b"a\nb"]


def test_an_endless_line_is_broken() -> None:
    parser = SseParser()
    with pytest.raises(BrokenStream):
        for _ in range(MAX_FRAME_BYTES // 2**20 + 1):
            list(parser.feed(b"x" * 2**20))


def chunk(**fields: Any) -> bytes:
    return orjson.dumps(
        {
            "system_fingerprint": DIGEST,
            "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}],
        }
        | fields
    )


@pytest.mark.parametrize("found", ["e" * 64, "base", None, 7])
def test_another_digest_is_refused(found: object) -> None:
    relay = Relay(ask(), IDENTITY)
    with pytest.raises(DigestMismatch):
        relay.decode(chunk(system_fingerprint=found))
    assert not relay.has_token


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"1", b'{"choices": 1}'])
def test_what_is_no_chunk_is_broken(raw: bytes) -> None:
    with pytest.raises(BrokenStream):
        Relay(ask(), IDENTITY).decode(raw)


@pytest.mark.parametrize(
    ("kind", "type_", "status"),
    [
        ("server_error", "server_error", 500),
        ("InternalServerError", "server_error", 500),
        ("invalid_request_error", "invalid_request_error", 400),
        ("BadRequestError", "invalid_request_error", 400),
    ],
)
def test_an_error_frame_is_raised(kind: str, type_: str, status: int) -> None:
    frame = {"error": {"message": "no", "type": kind, "param": None, "code": "broken"}}
    with pytest.raises(ApiError) as caught:
        Relay(ask(), IDENTITY).decode(orjson.dumps(frame))
    error = caught.value
    assert (error.status, error.code, error.type) == (status, "broken", type_)


def test_counts_never_go_back_and_cached_stays_a_part() -> None:
    relay = Relay(ask(), IDENTITY)
    for prompt, cached, completion in ((10, 4, 1), (10, 4, 3), (0, 0, 2), (10, 99, 4)):
        details = {"cached_tokens": cached}
        usage = {"prompt_tokens": prompt, "completion_tokens": completion}
        relay.decode(chunk(usage=usage | {"prompt_tokens_details": details}))
    assert relay.tokens == Tokens(prompt=10, cached=10, completion=4)


def test_the_role_alone_is_no_token() -> None:
    relay = Relay(ask(), IDENTITY)
    delta = {"role": "assistant", "content": ""}
    relay.decode(chunk(choices=[{"index": 0, "delta": delta, "finish_reason": None}]))
    assert not relay.has_token
    relay.decode(chunk())
    assert relay.has_token


def test_calls_of_tools_are_folded() -> None:
    """As vLLM streams them: two calls, their arguments in pieces, for the second of two choices."""
    pieces: list[dict[str, Any]] = [
        {
            "index": 0,
            "id": "call_a",
            "type": "function",
            "function": {"name": "f", "arguments": ""},
        },
        {"index": 0, "function": {"arguments": '{"city":'}},
        {
            "index": 1,
            "id": "call_b",
            "type": "function",
            "function": {"name": "g", "arguments": ""},
        },
        {"index": 0, "function": {"arguments": ' "Oslo"}'}},
        {"index": 1, "function": {"arguments": "{}"}},
    ]
    folder = Folder("chat.completions")
    deltas: list[dict[str, Any]] = [{"role": "assistant"}, *({"tool_calls": [p]} for p in pieces)]
    for delta in deltas:
        folder.add({"choices": [{"index": 1, "delta": delta}]})
    folder.add({"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]})
    folder.add({"choices": [{"index": 1, "delta": {}, "finish_reason": "tool_calls"}]})
    answer = Relay(ask(), IDENTITY).whole(folder.choices())
    typed = strict(ChatCompletion, orjson.dumps(answer))
    text, called = (choice.message for choice in typed.choices)
    assert (text.content, text.tool_calls) == ("Hi", None)
    assert called.content is None and called.tool_calls
    found = [one.model_dump()["function"] for one in called.tool_calls]
    assert found == [
        {"name": "f", "arguments": '{"city": "Oslo"}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert [one.id for one in called.tool_calls] == ["call_a", "call_b"]
