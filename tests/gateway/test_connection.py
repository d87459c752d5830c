"""What a connection may take of a web process: a real one, over raw sockets."""

import contextlib
import http.client
import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import Behaviour
from tests.gateway.live import Web, metric, start_web, wait_for

CHAT = "/v1/chat/completions"
BODY = {"model": "support-bot", "messages": [{"role": "user", "content": "Hi"}]}
LIMITS = {
    "HEAD_TIMEOUT_S": "1",
    "KEEP_ALIVE_TIMEOUT_S": "2",
    "WRITE_TIMEOUT_S": "2",
    "BODY_TIMEOUT_S": "1",
    "MIN_UPLOAD_BYTES_PER_S": "10000",
    "MAX_CONNECTIONS": "24",
    "MAX_STREAMS": "3",
    "MAX_HEADERS": "20",
    "MAX_HEADER_BYTES": "12000",
}


@pytest.fixture(scope="module")
def tight_web(running_stack: Stack) -> Iterator[Web]:
    urls = [one.url for one in running_stack.replicas]
    web = start_web(running_stack.folder, running_stack.database_url, urls, **LIMITS)
    yield web
    web.stop()


@pytest.fixture
def customer(stack: Stack, tight_web: Web) -> Customer:
    made = stack.make_customer()
    stack.activate(made, "support-bot")
    return Customer(tight_web, made.tenant, made.api_key)


def dial(web: Web, receive_bytes: int = 0) -> socket.socket:
    where = urlsplit(web.url)
    raw = socket.socket()
    if receive_bytes:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    raw.settimeout(10)
    raw.connect((where.hostname, where.port))
    return raw


@contextlib.contextmanager
def dialled(web: Web, receive_bytes: int = 0) -> Iterator[socket.socket]:
    with contextlib.closing(dial(web, receive_bytes)) as raw:
        yield raw


def rest(raw: socket.socket) -> bytes:
    """All that comes until the server closes."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := raw.recv(65536):
            found += part
    return found


def status_of(raw: socket.socket) -> int:
    """The next answer's, which is read whole."""
    answer = http.client.HTTPResponse(raw)
    answer.begin()
    answer.read()
    return answer.status


def error_in(answer: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower(), answer
    error: dict[str, Any] = json.loads(body)["error"]
    assert list(error) == ["message", "type", "param", "code"]
    return int(head.split()[1]), error


def chat_head(customer: Customer, more: str = "") -> str:
    return f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {customer.api_key}\r\n{more}"


def stream_request(customer: Customer, **fields: Any) -> bytes:
    body = json.dumps(BODY | {"stream": True} | fields)
    return (chat_head(customer, f"Content-Length: {len(body)}\r\n\r\n") + body).encode()


def nothing_runs(stack: Stack, within_s: float) -> None:
    wait_for("the abort", lambda: not sum(one.num_running for one in stack.replicas), within_s)


def dropped(web: Web, reason: str) -> float:
    return metric(web, f'grafthouse_connections_dropped_total{{reason="{reason}"}}')


def test_a_head_that_trickles(tight_web: Web) -> None:
    with dialled(tight_web) as raw:
        begin = time.monotonic()
        raw.sendall(b"GET /healthz HTTP/1.1\r\n")
        with contextlib.suppress(OSError):
            for _ in range(6):
                raw.sendall(b"x-a: b\r\n")
                time.sleep(0.3)
        status, error = error_in(rest(raw))
    assert (status, error["code"]) == (408, "request_timeout")
    assert "head" in error["message"]
    assert 0.9 < time.monotonic() - begin < 6


def test_a_connection_without_a_byte(tight_web: Web) -> None:
    with dialled(tight_web) as raw:
        assert rest(raw) == b""


def test_a_kept_connection_is_closed_when_idle(tight_web: Web) -> None:
    with dialled(tight_web) as raw:
        begin = time.monotonic()
        for _ in range(2):
            raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert status_of(raw) == 200
            # Longer than a head may take: it has not begun.
            time.sleep(1.3)
        assert rest(raw) == b""
        assert time.monotonic() - begin > 3


def test_a_body_that_nobody_wants_holds_no_connection(tight_web: Web) -> None:
    """Without a key the answer is there before the body; what still trickles is no request."""
    with dialled(tight_web) as raw:
        raw.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n".encode())
        assert status_of(raw) == 401
        with pytest.raises(OSError):
            for _ in range(20):
                raw.sendall(b" ")
                time.sleep(0.3)


def test_many_that_dawdle_keep_nobody_out(tight_web: Web) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            raw = stack.enter_context(dialled(tight_web))
            raw.sendall(b"GET /healthz HTTP/1.1\r\nx: ")
        begin = time.monotonic()
        assert requests.get(f"{tight_web.url}/healthz", timeout=5).status_code == 200
        assert time.monotonic() - begin < 0.9
    assert dropped(tight_web, "evicted") >= 6


def test_more_connections_than_may_be(stack: Stack, customer: Customer) -> None:
    """Each is served, so none can be evicted: the newest is told to come again."""
    for replica in stack.replicas:
        replica.behaviour = Behaviour(silent_s=20)
    with contextlib.ExitStack() as opened:
        for _ in range(24):
            raw = opened.enter_context(dialled(customer.web))
            # No body comes: the request runs for a second.
            raw.sendall(chat_head(customer, "Content-Length: 9\r\n\r\n").encode())
        time.sleep(0.3)
        newest = opened.enter_context(dialled(customer.web))
        status, error = error_in(rest(newest))
    assert (status, error["code"]) == (503, "overloaded")


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        ("GET /" + "a" * 8001 + " HTTP/1.1\r\n\r\n", 414, "uri_too_long"),
        ("GET / HTTP/1.1\r\n" + "x-a: b\r\n" * 21 + "\r\n", 431, "headers_too_large"),
        ("GET / HTTP/1.1\r\nx-a: " + "b" * 8001 + "\r\n\r\n", 431, "headers_too_large"),
        ("GET / HTTP/1.1\r\n" + f"x-a: {'b' * 3000}\r\n" * 5, 431, "headers_too_large"),
        ("GET / HTTP/1.1\r\nx-a: " + "b" * 20_000, 431, "headers_too_large"),
        ("x" * 20_000, 400, "invalid_http"),
        ("GET / HTTP/1.1\r\nbad header\r\n\r\n", 400, "invalid_http"),
        ("GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400, "invalid_http"),
    ],
)
@pytest.mark.parametrize("kind", ["", "Upgrade: websocket\r\nConnection: Upgrade\r\n"])
def test_heads_that_are_too_large(
    tight_web: Web, head: str, status: int, code: str, kind: str
) -> None:
    head = head.replace("HTTP/1.1\r\n", f"HTTP/1.1\r\n{kind}")
    with dialled(tight_web) as raw:
        raw.sendall(head.encode())
        found, error = error_in(rest(raw))
    assert (found, error["code"]) == (status, code)


def test_a_head_up_to_the_limits(tight_web: Web) -> None:
    lines = "x-a: b\r\n" * 18 + "x-b: " + "b" * 7000 + "\r\n"
    with dialled(tight_web) as raw:
        raw.sendall(f"GET /healthz?{'a' * 4000} HTTP/1.1\r\n{lines}\r\n".encode())
        assert status_of(raw) == 200


@pytest.mark.parametrize("trailer", [b"x-a: b\r\n" * 100, b"x: " + b"a" * 50_000])
def test_trailers_are_bounded(customer: Customer, trailer: bytes) -> None:
    with dialled(customer.web) as raw:
        head = chat_head(customer, "Transfer-Encoding: chunked\r\n\r\n")
        raw.sendall(head.encode() + b"2\r\n{}\r\n0\r\n")
        # Not in one read with the body.
        time.sleep(0.1)
        raw.sendall(trailer)
        begin = time.monotonic()
        assert rest(raw) == b""
        assert time.monotonic() - begin < 0.8


def test_a_pipeline_is_bounded(stack: Stack, customer: Customer) -> None:
    for replica in stack.replicas:
        replica.behaviour = Behaviour(silent_s=20)
    with dialled(customer.web) as raw:
        raw.sendall(stream_request(customer) + b"GET /healthz HTTP/1.1\r\n\r\n" * 100)
        assert rest(raw) == b""
    nothing_runs(stack, within_s=5)


@pytest.mark.case("C104")
def test_who_leaves_a_pipeline_is_missed(stack: Stack, customer: Customer) -> None:
    """uvicorn tells the newest request of a pipeline that its client has gone: the stream before it
    ran on to its end. Right: it is cancelled within a second, as any other.
    """
    for replica in stack.replicas:
        replica.behaviour = Behaviour(tokens=["x"] * 500, token_interval_s=0.02)
    with dialled(customer.web) as raw:
        raw.sendall(stream_request(customer, max_tokens=500))
        assert raw.recv(65536).startswith(b"HTTP/1.1 200")
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.1)
    nothing_runs(stack, within_s=3)
    assert customer.usage(1)[0].status == "cancelled"


def test_a_short_pipeline_is_answered(tight_web: Web) -> None:
    with dialled(tight_web) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 8)
        assert rest(raw).count(b"HTTP/1.1 200") == 8


@pytest.mark.case("C112")
def test_a_body_that_trickles(customer: Customer) -> None:
    """A slow body held its connection at peers for as long as it liked; here it ends with a 408."""
    with dialled(customer.web) as raw:
        raw.sendall(chat_head(customer, "Content-Length: 1000\r\n\r\n{").encode())
        status, error = error_in(rest(raw))
    assert (status, error["code"]) == (408, "request_timeout")


@pytest.mark.case("C112")
@pytest.mark.parametrize("path", ["/api/session", "/v1/uploads"])
def test_an_upload_that_trickles(stack: Stack, tight_web: Web, path: str) -> None:
    """Uploads may last, but not stand still: 408, in the error shape of where they were sent."""
    customer = stack.make_customer(scopes=("inference", "adapters"))
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {customer.api_key}\r\nContent-Length: 1000\r\n\r\n"
    with dialled(tight_web) as raw:
        raw.sendall(head.encode())
        begin = time.monotonic()
        raw.sendall(b"{" * 500)
        answer = rest(raw)
    assert answer.startswith(b"HTTP/1.1 408")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
    assert time.monotonic() - begin < 5


def test_a_steady_upload_may_take_its_time(stack: Stack, tight_web: Web) -> None:
    head = "POST /api/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with dialled(tight_web) as raw:
        raw.sendall(f"{head}Content-Length: 80000\r\n\r\n".encode())
        for _ in range(20):
            raw.sendall(b" " * 4000)
            time.sleep(0.1)
        assert status_of(raw) in {400, 403}


@pytest.mark.case("C112")
def test_a_length_that_is_too_long(customer: Customer) -> None:
    """A hang at peers; here the rest is waited for, for so long and no longer."""
    with dialled(customer.web) as raw:
        raw.sendall(chat_head(customer, "Content-Length: 1000\r\n\r\n{}").encode())
        assert error_in(rest(raw))[0] == 408


@pytest.mark.case("C112")
def test_a_length_that_is_too_short(customer: Customer) -> None:
    """What is left over is no request: the connection ends, and nothing of it is answered as one.
    The request before it gets its answer if that was there first.
    """
    with dialled(customer.web) as raw:
        raw.sendall(chat_head(customer, "Content-Length: 2\r\n\r\n{}garbage\r\n\r\n").encode())
        answer = rest(raw)
    assert {part.split()[0] for part in answer.split(b"HTTP/1.1 ")[1:]} <= {b"400"}


@pytest.mark.case("C104")
def test_two_hundred_that_leave_at_once(stack: Stack) -> None:
    """Middleware hid disconnects at peers and devices worked on for minutes. Here each is aborted
    within about a second, reset or closed, and has one row of what it produced.
    """
    made = stack.make_customer()
    stack.activate(made, "support-bot")
    for replica in stack.replicas:
        replica.behaviour = Behaviour(tokens=["x"] * 2000, token_interval_s=0.2)
    links = [dial(stack.web) for _ in range(200)]
    for link in links:
        link.sendall(stream_request(made, max_tokens=2000))
    for link in links:
        seen = b""
        while seen.count(b'"content":"x"') < 1:
            seen += link.recv(65536)
    assert sum(one.num_running for one in stack.replicas) == 200
    for number, link in enumerate(links):
        if number % 2:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        link.close()
    nothing_runs(stack, within_s=5)
    rows = made.usage(200)
    assert {row.status for row in rows} == {"cancelled"}
    assert all(row.completion_tokens for row in rows)


def test_maximum_streams(stack: Stack, customer: Customer) -> None:
    for replica in stack.replicas:
        replica.behaviour = Behaviour(tokens=["x"] * 500, token_interval_s=0.02)
    with contextlib.ExitStack() as opened:
        for _ in range(3):
            raw = opened.enter_context(dialled(customer.web))
            raw.sendall(stream_request(customer, max_tokens=500))
            assert raw.recv(65536).startswith(b"HTTP/1.1 200")
        headers = {"Authorization": f"Bearer {customer.api_key}"}
        answer = requests.post(customer.web.url + CHAT, json=BODY, headers=headers, timeout=10)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "overloaded"
        assert int(answer.headers["retry-after"]) >= 1
    assert len(customer.usage(3)) == 3

    def answered() -> bool:
        again = requests.post(customer.web.url + CHAT, json=BODY, headers=headers, timeout=10)
        return again.status_code == 503

    for replica in stack.replicas:
        replica.behaviour = Behaviour()
    wait_for("a free slot", lambda: not answered())


def resident_bytes(web: Web) -> int:
    with open(f"/proc/{web.process.pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_a_reader_that_stops_is_dropped_and_billed(stack: Stack, customer: Customer) -> None:
    """100 MB for a reader that takes none of it: memory stays, others are served, and in the end
    it is cut; what its replica has produced is charged.
    """
    for replica in stack.replicas:
        replica.behaviour = Behaviour(tokens=["x" * 50_000] * 2000)
    before = resident_bytes(customer.web)
    with dialled(customer.web, receive_bytes=65536) as raw:
        raw.sendall(stream_request(customer, max_tokens=2000))
        time.sleep(1)
        assert sum(one.num_running for one in stack.replicas) == 1
        assert resident_bytes(customer.web) - before < 16 * 2**20
        for replica in stack.replicas:
            replica.behaviour = Behaviour()
        assert customer.client().chat.completions.create(**BODY)  # type: ignore[call-overload]
        nothing_runs(stack, within_s=20)
    rows = customer.usage(2)
    [row] = [one for one in rows if one.status == "cancelled"]
    assert row.completion_tokens and 1 <= row.completion_tokens < 2000
    assert dropped(customer.web, "stalled") >= 1


def test_a_reader_that_is_slow_is_not_dropped(stack: Stack, customer: Customer) -> None:
    for replica in stack.replicas:
        replica.behaviour = Behaviour(tokens=["x" * 50_000] * 120)
    found = b""
    with dialled(customer.web, receive_bytes=65536) as raw:
        raw.sendall(stream_request(customer, max_tokens=120))
        begin = time.monotonic()
        while time.monotonic() < begin + 4:
            found += raw.recv(65536)
            time.sleep(0.05)
        while b"[DONE]" not in found[-100:]:
            found += raw.recv(2**20)
    [row] = customer.usage(1)
    assert (row.status, row.completion_tokens) == ("finished", 120)
