"""The replica's own record of what each request came to: whatever ended it, and whatever ended the
process.
"""

import asyncio
import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import requests

from inference.errors import ErrorCode
from inference.metrics import FrontMetrics
from inference.request import Failed, SamplingParams
from inference.server.attempt import Attempt
from inference.server.bridge import Bridge
from inference.server.choice import ChoiceRules
from inference.server.generation import Generation, Plan
from inference.server.model_folder import ModelFolder
from inference.server.share import Share
from inference.server.usage_file import Record, UsageFile
from inference.server.usage_log import UsageLog
from tests.inference.server.conftest import (
    Scripted,
    Server,
    exit_status,
    start_replica,
)
from tests.inference.server.scripted import DIGEST, ScriptedEngine
from tests.inference.server.test_wire import CHAT, ids

METERED = {"stream": True, "stream_options": {"continuous_usage_stats": True}}
HI: list[Any] = [{"role": "user", "content": "hi there"}]


def record(number: int, completion_tokens: int = 3) -> Record:
    return Record(f"r{number}", 1, None, "finished", 10, 4, completion_tokens)


async def known(url: str, *request_ids: str) -> list[dict[str, Any]]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/usage", json={"request_ids": request_ids}) as response,
    ):
        assert response.status == 200, await response.text()
        found: list[dict[str, Any]] = (await response.json())["records"]
        return found


async def until_ended(url: str, request_id: str) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while not (found := await known(url, request_id)) or found[0]["outcome"] == "running":
            await asyncio.sleep(0.02)
    (one,) = found
    return one


async def usages(response: aiohttp.ClientResponse, number: int | None = None) -> list[Any]:
    """Of the frames of a stream, so many of them, or all."""
    found: list[Any] = []
    async for line in response.content:
        if line.startswith(b"data: {"):
            found.append(json.loads(line[6:]).get("usage"))
        if len(found) == number:
            break
    return [one for one in found if one]


@pytest.mark.parametrize("model", ["tiny", "graft"])
async def test_it_works(scripted: Scripted, folder: ModelFolder, model: str) -> None:
    _, url = await scripted(tokens=ids(folder, "Hello you"), num_cached=2)
    headers = {"X-Request-Id": "req_1", "X-Request-Attempt": "2"}
    body = CHAT | METERED | {"model": model}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response,
    ):
        *_, last = await usages(response)
    assert last["completion_tokens"] > 2
    assert await until_ended(url, "req_1") == {
        "request_id": "req_1",
        "attempt": 2,
        "digest": DIGEST if model == "graft" else None,
        "outcome": "finished",
        "prompt_tokens": last["prompt_tokens"],
        "cached_tokens": 2,
        "completion_tokens": last["completion_tokens"],
    }
    assert await known(url, "req_2") == []


async def test_a_sender_that_left(scripted: Scripted, folder: ModelFolder) -> None:
    """Running until then, with its tokens so far; then aborted, with at least what it has read."""
    _, url = await scripted(tokens=ids(folder, "a" * 200), delay_s=0.02)
    body, headers = CHAT | METERED | {"max_tokens": 200}, {"X-Request-Id": "req_1"}
    async with aiohttp.ClientSession() as session:
        response = await session.post(f"{url}/v1/chat/completions", json=body, headers=headers)
        *_, seen = await usages(response, 5)
        (running,) = await known(url, "req_1")
        response.close()
    assert running["outcome"] == "running"
    assert running["completion_tokens"] >= seen["completion_tokens"] > 0
    ended = await until_ended(url, "req_1")
    assert ended["outcome"] == "aborted"
    assert running["completion_tokens"] <= ended["completion_tokens"] < 200


async def test_a_failure(scripted: Scripted, folder: ModelFolder) -> None:
    """Of several choices, too: what all of them made counts."""
    failure = Failed("", ErrorCode.NON_FINITE_LOGITS, "no")
    _, url = await scripted(tokens=ids(folder, "Yo"), failure=failure)
    body, headers = CHAT | METERED | {"n": 2}, {"X-Request-Id": "req_1"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response,
    ):
        found = await usages(response)
    ended = await until_ended(url, "req_1")
    assert ended["outcome"] == "failed"
    assert ended["completion_tokens"] == found[-1]["completion_tokens"]


@pytest.mark.parametrize("text", ["0", "1001", "two", "", "-1", "²"])
async def test_an_attempt_that_is_none(scripted: Scripted, folder: ModelFolder, text: str) -> None:
    engine, url = await scripted(tokens=ids(folder, "Yo"))
    headers = {"X-Request-Id": "req_1", "X-Request-Attempt": text}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json=CHAT, headers=headers) as response,
    ):
        error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, "X-Request-Attempt")
    assert engine.requests == [] and await known(url, "req_1") == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "request_ids"),
        ({"request_ids": "r1"}, "request_ids"),
        ({"request_ids": [1]}, "request_ids"),
        ({"request_ids": ["r"] * 1001}, "request_ids"),
        ({"request_ids": [], "more": 1}, "more"),
    ],
)
def test_a_question_that_is_none(server: Server, body: dict[str, Any], param: str) -> None:
    answer = server.call("/usage", body)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert server.call("/usage", {"request_ids": ["r"] * 1000}).json == {"records": []}


GenerationOf = Callable[[ScriptedEngine], Generation]


@pytest.fixture
async def made(folder: ModelFolder) -> GenerationOf:
    """A generation that is not begun: only its record matters."""
    bridge, metrics = Bridge(), FrontMetrics()
    rules = ChoiceRules(lambda _: b"", frozenset())

    def make(engine: ScriptedEngine) -> Generation:
        plan = Plan(((1, 2),), (SamplingParams(1),), rules, None, "", "prompt")
        return Generation(plan, Share("acme"), engine, bridge, metrics)

    return make


async def test_the_oldest_are_forgotten(made: GenerationOf, folder: ModelFolder) -> None:
    log, engine = UsageLog(max_records=3), ScriptedEngine(folder.spec)
    for number in (0, 1, 2, 0, 3):
        generation = made(engine)
        with log.follow(Attempt(f"r{number}"), generation), closing(generation):
            pass
    found = log.find([f"r{number}" for number in range(5)])
    assert sorted(one.request_id for one in found) == ["r0", "r2", "r3"]


async def test_two_requests_of_one_id(made: GenerationOf, folder: ModelFolder) -> None:
    """A sender's mistake: neither hides that the other still runs."""
    log, engine = UsageLog(), ScriptedEngine(folder.spec)
    first, second = made(engine), made(engine)
    with log.follow(Attempt("r"), first), closing(first):
        with log.follow(Attempt("r"), second), closing(second):
            assert [one.outcome for one in log.find(["r"])] == ["running", "running"]
        assert sorted(one.outcome for one in log.find(["r"])) == ["aborted", "running"]


def test_a_file_outlives_its_process(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    for half in (range(3), range(3, 5)):
        file = UsageFile(path)
        assert file.read() == [record(number) for number in range(half.start)]
        for number in half:
            file.put(record(number))
        file.close()
    assert [one.request_id for one in UsageFile(path).read()] == ["r0", "r1", "r2", "r3", "r4"]
    assert UsageLog(UsageFile(path)).find(["r1", "r9"]) == [record(1)]


@pytest.mark.parametrize("num_cut", [1, 5, 100])
def test_a_line_that_was_cut_off(tmp_path: Path, num_cut: int) -> None:
    """The next process writes on behind it: only that line is lost."""
    path = tmp_path / "usage.jsonl"
    for number in (0, 1):
        file = UsageFile(path)
        file.read()
        file.put(record(number))
        file.close()
        if number == 0:
            path.write_bytes(path.read_bytes()[:-num_cut])
    assert UsageFile(path).read() == [record(1)]


def test_a_file_is_bounded(tmp_path: Path) -> None:
    """One is begun when one is full; the newest are always there."""
    path = tmp_path / "usage.jsonl"
    for number in range(25):
        file = UsageFile(path, max_lines=10)
        file.read()
        file.put(record(number))
        file.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["usage.jsonl", "usage.jsonl.1"]
    assert UsageFile(path).read() == [record(number) for number in range(10, 25)]


def test_a_disk_that_takes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once; later records are written when it does again."""
    folder = tmp_path / "gone"
    folder.mkdir()
    file = UsageFile(folder / "usage.jsonl")
    assert file.read() == []
    (folder / "usage.jsonl").rename(tmp_path / "usage.jsonl")
    folder.rmdir()
    for number in range(20):
        file.put(record(number))
        file._writer.submit(int).result(10)
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    folder.mkdir()
    file.put(record(20))
    file.close()
    assert UsageFile(folder / "usage.jsonl").read() == [record(20)]


def test_a_file_that_cannot_be_is_one_line(base: Path, tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "usage.jsonl"
    with pytest.raises(RuntimeError, match=f"error: --usage-file {path}: No such file"):
        start_replica("--model-path", str(base), "--usage-file", str(path))


@pytest.fixture
def begin(base: Path, tmp_path: Path) -> Iterator[Callable[[], Server]]:
    """Starts a replica with its usage in one file, and kills it in the end."""
    flags = ("--model-path", str(base), "--usage-file", str(tmp_path / "usage.jsonl"))
    with ExitStack() as cleanup:

        def begin() -> Server:
            replica = start_replica(*flags, "--grace-s", "0.1")
            assert replica.process is not None
            cleanup.callback(replica.process.__exit__, None, None, None)
            cleanup.callback(replica.process.kill)
            return replica

        yield begin


def cut_off(replica: Server, request_id: str, number: int) -> int:
    """Ends the process under a long stream: the tokens that were seen of that."""
    assert replica.process is not None
    num_seen = 0
    body = METERED | {"model": "tiny", "messages": HI, "n": 16, "ignore_eos": True}
    headers, url = {"X-Request-Id": request_id}, f"{replica.url}/v1/chat/completions"
    with (
        contextlib.suppress(requests.RequestException),
        requests.post(url, json=body, headers=headers, stream=True, timeout=30) as response,
    ):
        for line in response.iter_lines():
            usage = json.loads(line[6:]).get("usage") if line.startswith(b"data: {") else None
            if usage and num_seen < 40 <= usage["completion_tokens"]:
                replica.process.send_signal(number)
            num_seen = usage["completion_tokens"] if usage else num_seen
    return num_seen


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_next_process_knows(begin: Callable[[], Server], is_killed: bool) -> None:
    """What had ended before a kill -9, and also what SIGTERM cut off."""
    replica = begin()
    body = {"model": "tiny", "messages": HI, "max_tokens": 7, "ignore_eos": True}
    answer = replica.call("/v1/chat/completions", body, headers={"X-Request-Id": "whole"})
    assert answer.json["usage"]["completion_tokens"] == 7
    num_seen = cut_off(replica, "cut", signal.SIGKILL if is_killed else signal.SIGTERM)
    assert num_seen >= 40
    exit_status(replica)
    found = begin().call("/usage", {"request_ids": ["whole", "cut"]}).json["records"]
    by_id = {one["request_id"]: one for one in found}
    assert (by_id["whole"]["outcome"], by_id["whole"]["completion_tokens"]) == ("finished", 7)
    if is_killed:
        assert "cut" not in by_id
    else:
        assert by_id["cut"]["outcome"] == "failed"
        assert by_id["cut"]["completion_tokens"] >= num_seen
