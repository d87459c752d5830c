"""The exact frames on the wire, forced through the real front by a scripted engine."""

import asyncio
import json
from typing import Any

import aiohttp
import openai
import pytest

from inference.errors import ErrorCode
from inference.request import Failed
from inference.server.model_folder import ModelFolder
from tests.inference.server.conftest import Scripted
from tests.inference.server.scripted import DIGEST

CHAT: dict[str, Any] = {"model": "graft", "messages": [{"role": "user", "content": "hi"}]}
BOTH = {"stream": True, "stream_options": {"include_usage": True}}


async def post(url: str, body: dict[str, Any]) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        return response.status, response.headers["Content-Type"], await response.text()


def events(text: str) -> list[Any]:
    """Frame by frame; the last must be [DONE]."""
    frames = text.split("\n\n")
    assert frames.pop() == ""
    assert all(frame.startswith("data: ") for frame in frames)
    assert frames.pop() == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def golden(chunks: list[Any]) -> list[Any]:
    """Without what differs from call to call, which is checked here."""
    assert len({(chunk.pop("id"), chunk.pop("created")) for chunk in chunks}) == 1
    return chunks


def ids(folder: ModelFolder, text: str) -> list[int]:
    return folder.tokenizer.encode_prompt(text)


async def test_chat_stream_golden(scripted: Scripted, folder: ModelFolder) -> None:
    engine, url = await scripted(tokens=ids(folder, "Yo"), num_cached=4)
    status, content_type, text = await post(f"{url}/v1/chat/completions", CHAT | BOTH)
    assert (status, content_type) == (200, "text/event-stream; charset=utf-8")
    shared = {
        "object": "chat.completion.chunk",
        "model": "graft",
        "system_fingerprint": DIGEST,
        "usage": None,
    }

    def choice(delta: Any, reason: str | None = None) -> Any:
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}

    usage = {
        "prompt_tokens": len(engine.requests[0].token_ids),
        "completion_tokens": 2,
        "total_tokens": len(engine.requests[0].token_ids) + 2,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert golden(events(text)) == [
        shared | {"choices": [choice({"role": "assistant", "content": ""})]},
        shared | {"choices": [choice({"content": "Y"})]},
        shared | {"choices": [choice({"content": "o"})]},
        shared | {"choices": [choice({}, "length")]},
        shared | {"choices": [], "usage": usage},
    ]


async def test_completion_stream_golden(scripted: Scripted, folder: ModelFolder) -> None:
    _, url = await scripted(tokens=ids(folder, "Yo"))
    body = {"model": "tiny", "prompt": "hi", "stream": True, "echo": True}
    _, _, text = await post(f"{url}/v1/completions", body)
    shared = {"object": "text_completion", "model": "tiny", "system_fingerprint": "base"}

    def choice(text: str, reason: str | None = None) -> Any:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}

    assert golden(events(text)) == [
        shared | {"choices": [choice("hi")]},
        shared | {"choices": [choice("Y")]},
        shared | {"choices": [choice("o")]},
        shared | {"choices": [choice("", "length")]},
    ]


async def test_chat_answer_golden(scripted: Scripted, folder: ModelFolder) -> None:
    engine, url = await scripted(tokens=ids(folder, "Yo"))
    body = CHAT | {"logprobs": True, "top_logprobs": 1}
    _, content_type, text = await post(f"{url}/v1/chat/completions", body)
    assert content_type == "application/json; charset=utf-8"
    answer = json.loads(text)
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 0
    num_prompt = len(engine.requests[0].token_ids)

    def entry(token: str) -> Any:
        value = {"token": token, "logprob": -0.5, "bytes": list(token.encode())}
        return value | {"top_logprobs": [value]}

    assert answer == {
        "object": "chat.completion",
        "model": "graft",
        "system_fingerprint": DIGEST,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Yo", "refusal": None},
                "logprobs": {"content": [entry("Y"), entry("o")], "refusal": None},
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": 2,
            "total_tokens": num_prompt + 2,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_the_engine_gets_what_was_asked(scripted: Scripted, folder: ModelFolder) -> None:
    engine, url = await scripted(tokens=ids(folder, "Yo"))
    body = CHAT | {"max_tokens": 9, "temperature": 0.5, "seed": 7, "n": 2, "cache_salt": "acme"}
    await post(f"{url}/v1/chat/completions", body)
    first, second = engine.requests
    assert first.request_id != second.request_id
    assert first.token_ids == second.token_ids == tuple(folder.encode_chat(CHAT["messages"], None))
    assert (first.digest, first.cache_salt) == (DIGEST, "acme")
    assert (first.sampling.max_tokens, first.sampling.temperature) == (9, 0.5)
    assert (first.sampling.seed, second.sampling.seed) == (7, 8)


@pytest.mark.case("C89")
async def test_emoji_and_cjk_are_never_split(scripted: Scripted, folder: ModelFolder) -> None:
    """One byte is one token here: at peers the deltas were full of replacement characters."""
    text = "👨‍👩‍👧 汉字 हिन्दी"
    _, url = await scripted(tokens=ids(folder, text))
    _, _, stream = await post(f"{url}/v1/chat/completions", CHAT | {"stream": True})
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in events(stream)]
    assert [delta for delta in deltas if delta] == list(text)


@pytest.mark.case("C87")
@pytest.mark.parametrize("stop", ["tuvwxyz", ["tuvwxyz"], ["nope", "tuv", "uvwxyz"]])
async def test_the_alphabet_stops_before_t(
    scripted: Scripted, folder: ModelFolder, stop: Any
) -> None:
    engine, url = await scripted(tokens=ids(folder, "abcdefghijklmnopqrstuvwxyz!"), delay_s=0.005)
    body = CHAT | {"stop": stop, "stream": True}
    _, _, stream = await post(f"{url}/v1/chat/completions", body)
    chunks = events(stream)
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == "abcdefghijklmnopqrs"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert engine.aborted == [engine.requests[0].request_id]
    _, _, whole = await post(f"{url}/v1/chat/completions", CHAT | {"stop": stop})
    assert json.loads(whole)["choices"][0]["message"]["content"] == "abcdefghijklmnopqrs"


@pytest.mark.case("C94")
async def test_choices_end_each_by_itself(scripted: Scripted, folder: ModelFolder) -> None:
    texts = ["ab.", "abcdef", "a."]
    _, url = await scripted(scripts=[ids(folder, text) for text in texts])
    body = CHAT | {"n": 3, "stop": "."} | BOTH
    _, _, stream = await post(f"{url}/v1/chat/completions", body)
    chunks = events(stream)
    usage = chunks.pop()["usage"]
    reasons = {}
    joined = {0: "", 1: "", 2: ""}
    for chunk in chunks:
        choice = chunk["choices"][0]
        joined[choice["index"]] += choice["delta"].get("content", "")
        if choice["finish_reason"]:
            assert choice["index"] not in reasons
            reasons[choice["index"]] = choice["finish_reason"]
    assert joined == {0: "ab", 1: "abcdef", 2: "a"}
    assert reasons == {0: "stop", 1: "length", 2: "stop"}
    assert usage["completion_tokens"] == 3 + 6 + 2


async def test_a_failure_in_mid_stream_is_a_frame(scripted: Scripted, folder: ModelFolder) -> None:
    failure = Failed("", ErrorCode.NON_FINITE_LOGITS, "the model's output is not finite")
    _, url = await scripted(tokens=ids(folder, "ab"), failure=failure)
    status, _, text = await post(f"{url}/v1/chat/completions", CHAT | {"stream": True})
    assert status == 200
    frames = [frame for frame in text.split("\n\n") if frame]
    assert "[DONE]" not in text
    assert json.loads(frames[-1].removeprefix("data: ")) == {
        "error": {
            "message": "the model's output is not finite",
            "type": "server_error",
            "param": None,
            "code": "non_finite_logits",
        }
    }
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        stream = await client.chat.completions.create(**CHAT, stream=True)
        with pytest.raises(openai.APIError, match="not finite"):
            async for _ in stream:
                pass


@pytest.mark.case("C114")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_token_is_a_status(
    scripted: Scripted, stream: bool
) -> None:
    failure = Failed("", ErrorCode.OVERLOADED, "no room")
    _, url = await scripted(failure=failure)
    status, content_type, text = await post(f"{url}/v1/chat/completions", CHAT | {"stream": stream})
    assert (status, content_type) == (503, "application/json; charset=utf-8")
    assert json.loads(text)["error"]["code"] == "overloaded"


async def test_continuous_usage_marks_every_token(scripted: Scripted, folder: ModelFolder) -> None:
    """Tokens without text of their own are reported too: the gateway bills by what it last saw."""
    _, url = await scripted(tokens=ids(folder, "a汉"), delay_s=0.02)
    body = CHAT | {"stream": True, "stream_options": {"continuous_usage_stats": True}}
    _, _, text = await post(f"{url}/v1/chat/completions", body)
    counts = [chunk["usage"]["completion_tokens"] for chunk in events(text)]
    assert set(counts) == {1, 2, 3, 4}


@pytest.mark.parametrize("num_choices", [1, 2])
async def test_tokens_wait_for_each_other_when_asked_to(
    scripted: Scripted, folder: ModelFolder, num_choices: int
) -> None:
    """The first comes alone; joined, the chunks say what single ones say."""
    word = ids(folder, "a" * 11)
    _, url = await scripted(tokens=word, delay_s=0.03)
    body = CHAT | {"stream": True, "n": num_choices, "logprobs": True}
    options = {"continuous_usage_stats": True}
    answers = []
    for extra in ({}, {"stream_interval": 4}):
        asked = body | {"stream_options": options | extra}
        _, _, text = await post(f"{url}/v1/chat/completions", asked)
        answers.append(events(text))
    single, joined = answers
    for index in range(num_choices):
        assert told(joined, index) == told(single, index)
    counts = [chunk["usage"]["completion_tokens"] for chunk in joined]
    assert counts == sorted(counts)
    assert counts[-1] == num_choices * len(word)
    sizes = [len(piece) for piece in logprobs_of(joined, 0) if piece]
    assert sizes[0] == 1
    assert max(sizes) == 4
    assert len(sizes) < len(word) / 2


def logprobs_of(chunks: list[dict[str, Any]], index: int) -> list[list[Any]]:
    mine = [one for chunk in chunks for one in chunk["choices"] if one["index"] == index]
    return [(one["logprobs"] or {}).get("content") or [] for one in mine]


def told(chunks: list[dict[str, Any]], index: int) -> tuple[str, list[Any], list[Any]]:
    mine = [one for chunk in chunks for one in chunk["choices"] if one["index"] == index]
    text = "".join(one["delta"].get("content") or "" for one in mine)
    reasons = [one["finish_reason"] for one in mine if one["finish_reason"]]
    return text, reasons, [one for piece in logprobs_of(chunks, index) for one in piece]


async def test_a_slow_engines_tokens_do_not_wait(scripted: Scripted, folder: ModelFolder) -> None:
    """Silence is what a replica that died is known by."""
    _, url = await scripted(tokens=ids(folder, "abcd"), delay_s=0.6)
    options = {"continuous_usage_stats": True, "stream_interval": 1000}
    body = CHAT | {"stream": True, "stream_options": options}
    _, _, text = await post(f"{url}/v1/chat/completions", body)
    counts = [chunk["usage"]["completion_tokens"] for chunk in events(text)]
    assert set(counts) == {1, 3, 4}


async def test_what_waited_is_told_before_an_error(scripted: Scripted, folder: ModelFolder) -> None:
    failure = Failed("", ErrorCode.NON_FINITE_LOGITS, "it broke")
    _, url = await scripted(tokens=ids(folder, "abc"), failure=failure, delay_s=0.01)
    body = CHAT | {"stream": True, "stream_options": {"stream_interval": 1000}}
    _, _, text = await post(f"{url}/v1/chat/completions", body)
    *chunks, error = (json.loads(line[6:]) for line in text.split("\n\n") if line)
    assert "".join(one["choices"][0]["delta"].get("content") or "" for one in chunks) == "abc"
    assert error["error"]["code"] == "non_finite_logits"


@pytest.mark.parametrize("interval", [0, 1025, "4", 2.5])
async def test_a_bad_interval_is_named(scripted: Scripted, interval: object) -> None:
    _, url = await scripted()
    body = CHAT | {"stream": True, "stream_options": {"stream_interval": interval}}
    status, _, text = await post(f"{url}/v1/chat/completions", body)
    assert status == 400
    assert json.loads(text)["error"]["param"] == "stream_options.stream_interval"


@pytest.mark.case("C95")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_nothing_is_infinite_in_json(
    scripted: Scripted, folder: ModelFolder, path: str
) -> None:
    _, url = await scripted(tokens=ids(folder, "a"), logprob=float("-inf"))
    chat = CHAT | {"logprobs": True, "top_logprobs": 2}
    completion = {"model": "graft", "prompt": "x", "logprobs": 2}
    status, _, text = await post(url + path, chat if "chat" in path else completion)
    assert status == 200
    assert "-9999.0" in text
    assert "Infinity" not in text


@pytest.mark.case("C104")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_aborts_at_once(
    scripted: Scripted, folder: ModelFolder, stream: bool
) -> None:
    """Peers worked on for minutes."""
    engine, url = await scripted(tokens=ids(folder, "a" * 400), delay_s=0.02)
    timeout = aiohttp.ClientTimeout(total=0.5)
    body = CHAT | {"stream": stream, "n": 2}
    async with aiohttp.ClientSession(timeout=timeout) as session:
        with pytest.raises(TimeoutError):
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                await response.read()
    for _ in range(50):
        if len(engine.aborted) == 2:
            break
        await asyncio.sleep(0.02)
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.requests)
