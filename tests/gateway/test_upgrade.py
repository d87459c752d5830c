"""Offers of HTTP/2 in the clear, as Java's client makes one with each first request.

uvicorn loses the body of such a request, and whatever comes after it on the connection.
"""

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.gateway.conftest import Customer, Stack
from tests.gateway.live import Web

OFFER = (
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAA\r\n"
)
HEALTH = f"GET /healthz HTTP/1.1\r\nHost: localhost\r\n{OFFER}\r\n".encode()
BODY = json.dumps({"model": "support-bot", "messages": [{"role": "user", "content": "Hi"}]})
SIZED = (f"Content-Length: {len(BODY)}\r\n", BODY)
CHUNKED = ("Transfer-Encoding: chunked\r\n", f"{len(BODY):x}\r\n{BODY}\r\n0\r\n\r\n")


@contextlib.contextmanager
def dialled(web: Web) -> Iterator[socket.socket]:
    where = urlsplit(web.url)
    with contextlib.closing(socket.create_connection((where.hostname, where.port), 10)) as raw:
        yield raw


def answer_to(raw: socket.socket, request: bytes, size: int = 1 << 20) -> tuple[int, bytes]:
    """(status, body), sent in pieces of so many bytes."""
    for at in range(0, len(request), size):
        raw.sendall(request[at : at + size])
    answer = http.client.HTTPResponse(raw)
    answer.begin()
    return answer.status, answer.read()


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize(("length", "body"), [SIZED, CHUNKED])
def test_a_body_behind_an_offer(acme: Customer, length: str, body: str, size: int) -> None:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{length}{OFFER}"
    request = f"{head}Authorization: Bearer {acme.api_key}\r\n\r\n{body}".encode()
    with dialled(acme.web) as raw:
        for _ in range(2):
            status, answer = answer_to(raw, request, size)
            assert status == 200
            assert json.loads(answer)["choices"][0]["message"]["content"] == "Hello world! ✓"
        assert answer_to(raw, HEALTH)[0] == 200
    assert [row.status for row in acme.usage(2)] == ["finished"] * 2


def test_offers_in_a_pipeline(stack: Stack) -> None:
    with dialled(stack.web) as raw:
        raw.sendall(HEALTH * 3)
        found = b""
        while found.count(b"HTTP/1.1 200") < 3:
            found += raw.recv(65536)


def test_a_tunnel_is_refused(stack: Stack) -> None:
    request = f"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n{OFFER}\r\n".encode()
    with dialled(stack.web) as raw:
        assert answer_to(raw, request)[0] == 400
