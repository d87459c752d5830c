"""Generations that outlive their socket: no frame is lost, none doubled, none another's."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.sync.client import ClientConnection, connect

from tenants.audit import system
from tenants.keys import create_key
from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import Behaviour
from tests.gateway.live import Web, start_web, wait_for

BODY = {"model": "support-bot", "messages": [{"role": "user", "content": "Hi"}]}
WINDOW_S = 2
LIMITS = {
    "RESUME_WINDOW_S": str(WINDOW_S),
    "MAX_RESUME_BYTES": "60000",
    "WRITE_TIMEOUT_S": "2",
    "MAX_STREAMS": "3",
}


@pytest.fixture(scope="module")
def tight_web(running_stack: Stack) -> Iterator[Web]:
    urls = [one.url for one in running_stack.replicas]
    web = start_web(running_stack.folder, running_stack.database_url, urls, **LIMITS)
    yield web
    web.stop()


@pytest.fixture
def acme(stack: Stack, tight_web: Web) -> Customer:
    made = stack.make_customer()
    stack.activate(made, "support-bot")
    return Customer(tight_web, made.tenant, made.api_key)


def pace(stack: Stack, num_tokens: int, interval_s: float = 0.02, size: int = 0) -> None:
    tokens = [f"{number}{'x' * size} " for number in range(num_tokens)]
    for replica in stack.replicas:
        replica.behaviour = Behaviour(tokens=tokens, token_interval_s=interval_s)


@contextlib.contextmanager
def dialled(web: Web, api_key: str, **options: Any) -> Iterator[ClientConnection]:
    url = web.url.replace("http", "ws") + "/ws/v1/chat"
    headers = {"Authorization": f"Bearer {api_key}"}
    with connect(url, additional_headers=headers, compression=None, **options) as link:
        assert hear(link)["type"] == "ready"
        yield link


def say(link: ClientConnection, **frame: Any) -> None:
    link.send(json.dumps(frame))


def hear(link: ClientConnection) -> dict[str, Any]:
    frame: dict[str, Any] = json.loads(link.recv(timeout=10))
    return frame


def cut(link: ClientConnection) -> None:
    """The connection is gone without a closing handshake."""
    link.socket.shutdown(socket.SHUT_RDWR)


def begin(link: ClientConnection, **fields: Any) -> str:
    """The name by which it may be resumed."""
    say(link, type="chat", id="a", resumable=True, body=BODY | fields)
    frame = hear(link)
    assert frame["type"] == "started"
    return str(frame["generation"])


def take(link: ClientConnection, num_frames: int) -> list[dict[str, Any]]:
    return [hear(link) for _ in range(num_frames)]


def take_all(link: ClientConnection) -> list[dict[str, Any]]:
    frames = [hear(link)]
    while frames[-1]["type"] == "chunk":
        frames.append(hear(link))
    return frames


def text_of(frames: list[dict[str, Any]]) -> str:
    deltas = [one["data"]["choices"][0]["delta"] for one in frames if one["type"] == "chunk"]
    return "".join(delta.get("content") or "" for delta in deltas)


def refusal(link: ClientConnection, generation: str, after: int = 0) -> dict[str, Any]:
    say(link, type="resume", id="r", generation=generation, after=after)
    frame = hear(link)
    assert (frame["type"], frame["id"]) == ("error", "r")
    error: dict[str, Any] = frame["error"]
    assert list(error) == ["message", "type", "param", "code"]
    return error


def num_running(stack: Stack) -> int:
    return sum(one.num_running for one in stack.replicas)


@pytest.mark.parametrize("num_seen", [1, 7])
def test_it_works(stack: Stack, acme: Customer, num_seen: int) -> None:
    pace(stack, 60)
    with dialled(acme.web, acme.api_key) as link:
        generation = begin(link)
        before = take(link, 10)[:num_seen]
        cut(link)
    time.sleep(0.3)
    with dialled(acme.web, acme.api_key) as link:
        say(link, type="resume", id="b", generation=generation, after=before[-1]["seq"])
        assert hear(link) == {"type": "resumed", "id": "b", "generation": generation}
        after = take_all(link)
    frames = before + after
    assert [one["seq"] for one in frames] == list(range(1, len(frames) + 1))
    assert text_of(frames) == "".join(f"{number} " for number in range(60))
    assert frames[-1]["type"] == "done" and frames[-1]["usage"]["completion_tokens"] == 60
    [row] = acme.usage(1)
    assert (row.status, row.completion_tokens) == ("finished", 60)


def test_dropped_again_and_again(stack: Stack, acme: Customer) -> None:
    """A new socket for every few frames, each cut while frames are on their way."""
    pace(stack, 100)
    with dialled(acme.web, acme.api_key) as link:
        generation = begin(link)
        frames = take(link, 3)
        cut(link)
    while frames[-1]["type"] == "chunk":
        with dialled(acme.web, acme.api_key) as link:
            say(link, type="resume", id="b", generation=generation, after=frames[-1]["seq"])
            assert hear(link)["type"] == "resumed"
            frames.append(hear(link))
            while frames[-1]["type"] == "chunk" and len(frames) % 9:
                frames.append(hear(link))
            cut(link)
    assert [one["seq"] for one in frames] == list(range(1, len(frames) + 1))
    assert text_of(frames) == "".join(f"{number} " for number in range(100))
    assert len(acme.usage(1)) == 1


def test_what_ended_meanwhile_is_kept(stack: Stack, acme: Customer) -> None:
    pace(stack, 5)
    with dialled(acme.web, acme.api_key) as link:
        generation = begin(link)
        whole = take_all(link)
        cut(link)
    with dialled(acme.web, acme.api_key) as link:
        say(link, type="resume", id="a", generation=generation, after=whole[-2]["seq"])
        assert take(link, 2)[1] == whole[-1]


def test_beyond_the_window_it_is_cancelled_and_settled(stack: Stack, acme: Customer) -> None:
    pace(stack, 1000)
    with dialled(acme.web, acme.api_key) as link:
        generation = begin(link)
        take(link, 3)
        cut(link)
    time.sleep(WINDOW_S / 2)
    assert num_running(stack) == 1
    [row] = acme.usage(1)
    assert row.status == "cancelled"
    # What was produced while nobody listened too.
    assert row.completion_tokens and row.completion_tokens > 20
    assert not num_running(stack)
    wait_for("the end of its frames", lambda: is_forgotten(acme, generation))


def is_forgotten(acme: Customer, generation: str) -> bool:
    with dialled(acme.web, acme.api_key) as link:
        say(link, type="resume", id="r", generation=generation, after=1)
        frame = hear(link)
    return frame["type"] == "error" and frame["error"]["code"] == "generation_not_found"


def test_beyond_its_bytes_it_is_cancelled_and_settled(stack: Stack, acme: Customer) -> None:
    pace(stack, 1000, interval_s=0.001, size=1000)
    with dialled(acme.web, acme.api_key) as link:
        begin(link)
        take(link, 3)
        cut(link)
    [row] = acme.usage(1)
    assert row.status == "cancelled"
    assert row.completion_tokens and row.completion_tokens < 400


def test_a_closing_handshake_is_a_goodbye(stack: Stack, acme: Customer) -> None:
    pace(stack, 1000)
    with dialled(acme.web, acme.api_key) as link:
        generation = begin(link)
        take(link, 3)
    wait_for("the abort", lambda: not num_running(stack), WINDOW_S / 2)
    assert acme.usage(1)[0].status == "cancelled"
    with dialled(acme.web, acme.api_key) as link:
        # It ended as a frame says, for whoever asks.
        say(link, type="resume", id="a", generation=generation, after=1)
        assert take_all(link)[-1]["type"] in {"resumed", "error"}


def test_what_is_not_resumable_ends_with_its_socket(stack: Stack, acme: Customer) -> None:
    pace(stack, 1000)
    with dialled(acme.web, acme.api_key) as link:
        say(link, type="chat", id="a", body=BODY)
        take(link, 3)
        cut(link)
    wait_for("the abort", lambda: not num_running(stack), WINDOW_S / 2)
    assert acme.usage(1)[0].status == "cancelled"


def test_it_is_its_owners_alone(stack: Stack, acme: Customer) -> None:
    """Another tenant, and another key of the same tenant: as one that never was."""
    pace(stack, 200)
    globex = stack.make_customer()
    second = create_key(system(acme.tenant.id), "second", ["inference"]).raw
    with dialled(acme.web, acme.api_key) as link:
        generation = begin(link)
        take(link, 3)
        cut(link)
    absent = generation[:9] + "0" * 32
    for api_key in (globex.api_key, second):
        with dialled(acme.web, api_key) as link:
            found = refusal(link, generation)
            assert found == refusal(link, absent)
            assert found["code"] == "generation_not_found"
    with dialled(acme.web, acme.api_key) as link:
        assert refusal(link, absent)["code"] == "generation_not_found"
        say(link, type="resume", id="b", generation=generation, after=3)
        assert hear(link)["type"] == "resumed"
        say(link, type="cancel", id="b")
        assert take_all(link)[-1]["error"]["code"] == "cancelled"
    assert acme.usage(1)[0].status == "cancelled"


def test_the_newer_reader_takes_over(stack: Stack, acme: Customer) -> None:
    """The client is sure that its socket is dead long before the server is."""
    pace(stack, 100)
    with (
        dialled(acme.web, acme.api_key) as old,
        dialled(acme.web, acme.api_key) as new,
    ):
        generation = begin(old)
        before = take(old, 5)
        say(new, type="resume", id="b", generation=generation, after=5)
        assert hear(new)["type"] == "resumed"
        frames = before + take_all(new)
        assert take_all(old)[-1]["error"]["code"] == "taken_over"
    assert [one["seq"] for one in frames] == list(range(1, len(frames) + 1))
    assert acme.usage(1)[0].status == "finished"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "invalid_request"),
        ({"generation": 5, "after": 0}, "invalid_request"),
        ({"generation": "x", "after": "y"}, "invalid_request"),
        ({"generation": "x", "after": -1}, "invalid_request"),
        ({"generation": "x", "after": 0}, "generation_not_found"),
    ],
)
def test_bad_frames(acme: Customer, fields: dict[str, Any], code: str) -> None:
    with dialled(acme.web, acme.api_key) as link:
        say(link, type="resume", id="a", **fields)
        assert hear(link)["error"]["code"] == code
        say(link, type="ping")
        assert hear(link)["type"] == "pong"


def test_frames_that_are_not_kept(stack: Stack, acme: Customer) -> None:
    pace(stack, 150, interval_s=0.001, size=1000)
    with dialled(acme.web, acme.api_key) as link:
        generation = begin(link)
        whole = take_all(link)
        for after in (0, whole[-1]["seq"] + 1):
            error = refusal(link, generation, after)
            assert (error["code"], error["param"]) == ("frames_not_kept", "after")


def test_maximum_streams(stack: Stack, acme: Customer) -> None:
    pace(stack, 500)
    with dialled(acme.web, acme.api_key) as link:
        for name in "abcd":
            say(link, type="chat", id=name, body=BODY)
        frames = take(link, 20)
    [error] = [one for one in frames if one["type"] == "error"]
    assert error["error"]["code"] == "overloaded"


def resident_bytes(web: Web) -> int:
    with open(f"/proc/{web.process.pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_a_reader_that_stops(stack: Stack, acme: Customer) -> None:
    """100 MB for a reader that takes none: it is cut, its frames wait for it in bounded memory, and
    then the generation is cancelled and billed.
    """
    pace(stack, 2000, interval_s=0, size=50_000)
    where = urlsplit(acme.web.url)
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    raw.connect((where.hostname, where.port))
    before = resident_bytes(acme.web)
    with dialled(acme.web, acme.api_key, sock=raw, max_queue=1) as link:
        begin(link, max_tokens=2000)
        time.sleep(1)
        assert num_running(stack) == 1
        assert resident_bytes(acme.web) - before < 16 * 2**20
        wait_for("the abort", lambda: not num_running(stack))
        cut(link)
    assert acme.usage(1)[0].status == "cancelled"
