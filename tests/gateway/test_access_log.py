"""The access log: a line a request, as the ledger has it, without what was said; and what it costs
nobody to write.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openai
import pytest
import requests
from django.test import override_settings

from gateway.access_log import MAX_WAITING_LINES, MAX_WRITE_BYTES, AccessLog, Visit, pieces
from gateway.metrics import ACCESS_LOG_DROPPED
from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import CACHED_TOKENS, PROMPT_TOKENS, Behaviour
from tests.gateway.live import ROOT_DIR, Web, start_web, wait_for
from tests.gateway.test_websocket import chat_socket, hear, say

SECRET = "the tulips are blue"
MESSAGES: Any = [{"role": "user", "content": SECRET}]
CHAT: Any = {"model": "support-bot", "messages": MESSAGES}
NUM_TOKENS = len(Behaviour().tokens)
FIELDS = (
    *("time", "request_id", "route", "status", "error_code", "tenant", "key", "user_id", "model"),
    *("served", "digest", "replica", "outcome"),
    *("prompt_tokens", "cached_tokens", "completion_tokens"),
    *("queue_ms", "first_token_ms", "total_ms"),
)


@dataclass(frozen=True)
class Logged:
    """A customer of a web process whose standard output is at hand."""

    customer: Customer
    digest: str
    web: Web

    def client(self) -> openai.OpenAI:
        return self.customer.client()

    def lines(self) -> list[dict[str, Any]]:
        text = self.web.log.read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def line(self, number: int = 1) -> dict[str, Any]:
        """The last, once there are so many more than at the start of the test."""
        return wait_for("its line", lambda: self.lines()[-1] if len(self.own()) >= number else None)

    def own(self) -> list[dict[str, Any]]:
        return [one for one in self.lines() if one["tenant"] == self.customer.tenant.slug]


@pytest.fixture(scope="module")
def web(running_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    folder = tmp_path_factory.mktemp("logged")
    urls = [replica.url for replica in running_stack.replicas]
    web = start_web(folder, running_stack.database_url, urls)
    yield web
    web.stop()


@pytest.fixture
def logged(web: Web, stack: Stack) -> Iterator[Logged]:
    wait_for("readiness", lambda: requests.get(f"{web.url}/readyz", timeout=5).ok)
    customer = replace(stack.make_customer(), web=web)
    yield Logged(customer, stack.activate(customer, "support-bot"), web)
    web.close_clients()


def test_it_works(logged: Logged, stack: Stack) -> None:
    answer = logged.client().chat.completions.with_raw_response.create(**CHAT)
    line, [row] = logged.line(), logged.customer.usage(1)
    assert tuple(line) == FIELDS
    assert line["request_id"] == row.request_id == answer.headers["x-request-id"]
    assert (line["route"], line["status"], line["error_code"]) == ("chat/completions", 200, None)
    assert line["key"] == logged.customer.api_key.split("-")[1]
    assert line["user_id"] is None
    assert (line["model"], line["served"]) == ("support-bot", "support-bot@1")
    assert (line["digest"], line["outcome"]) == (logged.digest, "finished")
    assert line["replica"] == row.replica in {replica.url for replica in stack.replicas}
    counts = (line["prompt_tokens"], line["cached_tokens"], line["completion_tokens"])
    assert counts == (PROMPT_TOKENS, CACHED_TOKENS, NUM_TOKENS)
    assert 0 < line["queue_ms"] < line["first_token_ms"] < line["total_ms"] < 10_000
    assert line["time"].endswith("+00:00")


def test_every_way_to_be_refused_has_its_code(logged: Logged) -> None:
    with pytest.raises(openai.NotFoundError):
        logged.client().chat.completions.create(model="nobody", messages=MESSAGES)
    line = logged.line()
    assert (line["status"], line["error_code"]) == (404, "model_not_found")
    assert line["model"] == "nobody"
    assert {line[name] for name in FIELDS[9:18]} == {None}
    num_lines = len(logged.lines())
    with pytest.raises(openai.AuthenticationError):
        logged.web.client("gh-nothing").models.list()
    line = wait_for("its line", lambda: logged.lines()[num_lines:])[0]
    assert (line["status"], line["error_code"], line["tenant"]) == (401, "invalid_api_key", None)


def test_a_stream_that_breaks_says_what_was_sent_and_why(logged: Logged, stack: Stack) -> None:
    for one in stack.replicas:
        one.behaviour = Behaviour(error_after=2)
    with pytest.raises(openai.APIError):
        list(logged.client().chat.completions.create(**CHAT, stream=True))
    line = logged.line()
    assert (line["status"], line["outcome"]) == (200, "failed")
    assert (line["error_code"], line["completion_tokens"]) == ("non_finite_logits", 2)


def test_who_hangs_up_is_a_499(logged: Logged, stack: Stack) -> None:
    for one in stack.replicas:
        one.behaviour = Behaviour(hold_after=2)
    with logged.client().chat.completions.create(**CHAT, stream=True) as answer:
        next(iter(answer))
    line = logged.line()
    assert (line["status"], line["outcome"], line["error_code"]) == (499, "cancelled", None)


def test_a_generation_on_a_socket_is_a_line(logged: Logged, stack: Stack) -> None:
    with chat_socket(replace(stack, web=logged.web), logged.customer) as link:
        say(link, type="chat", id="a", body=CHAT)
        while hear(link)["type"] != "done":
            pass
    line = logged.line()
    assert (line["route"], line["status"], line["outcome"]) == ("ws/chat", 200, "finished")
    assert line["completion_tokens"] == NUM_TOKENS


def test_nothing_that_was_said_is_in_it(logged: Logged) -> None:
    content = logged.client().chat.completions.create(**CHAT).choices[0].message.content
    logged.line()
    text = logged.web.log.read_text()
    assert content is not None
    for said in (SECRET, content, logged.customer.api_key):
        assert said not in text


def test_off_it_says_nothing(stack: Stack, tmp_path: Path) -> None:
    urls = [replica.url for replica in stack.replicas]
    web = start_web(tmp_path, stack.database_url, urls, ACCESS_LOG="off")
    try:
        assert requests.get(f"{web.url}/v1/models", timeout=30).status_code == 401
    finally:
        web.stop()
    assert "{" not in web.log.read_text()


def test_another_word_is_refused_at_start() -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "check"],
        cwd=ROOT_DIR,
        env=os.environ | {"ACCESS_LOG": "yes"},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "ACCESS_LOG: expected json or off, got 'yes'" in done.stderr


def dropped() -> float:
    return float(ACCESS_LOG_DROPPED._value.get())


def read_lines(descriptor: int) -> list[bytes]:
    """Until every writer has closed."""
    with os.fdopen(descriptor, "rb") as file:
        return file.readlines()


@override_settings(ACCESS_LOG="json")
def test_a_reader_that_stands_still_holds_up_nobody() -> None:
    reader, writer = os.pipe()
    log, before = AccessLog(writer), dropped()
    log.start()
    slowest_s = 0.0
    num_lines = MAX_WAITING_LINES + 1000
    for number in range(num_lines):
        began = time.perf_counter()
        log.write(Visit(f"r{number}", 0.0), "models", 200)
        slowest_s = max(slowest_s, time.perf_counter() - began)
        # Its thread fills the pipe, and stands.
        time.sleep(0.2 if number == 0 else 0)
    assert slowest_s < 0.5
    num_dropped = dropped() - before
    assert 0 < num_dropped <= 1000
    began = time.monotonic()
    log.close()
    assert time.monotonic() - began < 5
    os.set_blocking(reader, False)
    whole = b""
    while piece := read_some(reader):
        whole += piece
    os.close(reader)
    lines = whole.splitlines()
    assert [json.loads(line)["request_id"] for line in lines] == [
        f"r{number}" for number in range(len(lines))
    ]
    assert len(lines) == num_lines - num_dropped


def read_some(reader: int) -> bytes:
    """What comes within half a second."""
    for _ in range(50):
        try:
            return os.read(reader, 1 << 20)
        except BlockingIOError:
            time.sleep(0.01)
    return b""


@override_settings(ACCESS_LOG="json")
def test_a_reader_that_is_gone_costs_lines_and_no_more() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    log, before = AccessLog(writer), dropped()
    log.start()
    log.write(Visit("r", 0.0), "models", 200)
    log.close()
    assert dropped() - before == 1
    os.close(writer)


def test_lines_are_written_whole() -> None:
    lines = [b"x" * size + b"\n" for size in (10, 4000, 90, 5000, 1, 2)]
    found = list(pieces(lines))
    assert b"".join(found) == b"".join(lines)
    assert all(piece.endswith(b"\n") for piece in found)
    assert [len(piece) <= MAX_WRITE_BYTES for piece in found] == [True, True, False, True]


MANY = """
import django, os, sys
django.setup()
from gateway.access_log import AccessLog, Visit
log = AccessLog()
log.start()
for number in range(3000):
    log.write(Visit(sys.argv[1] * 32, 0.0), "models", 200)
log.close()
"""


def test_lines_of_several_processes_do_not_mix() -> None:
    """Behind one pipe, as uvicorn's workers are."""
    reader, writer = os.pipe()
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "gateway.settings"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MANY, name], stdout=writer, cwd=ROOT_DIR, env=environment
        )
        for name in "abc"
    ]
    os.close(writer)
    lines = read_lines(reader)
    assert [process.wait(30) for process in processes] == [0, 0, 0]
    names = [json.loads(line)["request_id"] for line in lines]
    assert sorted(set(names)) == [name * 32 for name in "abc"]
    assert len(names) == 9000
