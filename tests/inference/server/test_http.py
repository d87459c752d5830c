"""What is wrong before a route is reached: paths, methods, sizes, types. Always the envelope."""

import gzip
import json
import socket
from typing import Any

import pytest

from inference.server.body import MAX_BODY_BYTES
from tests.inference.server.conftest import Server

CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 1,
}
PATH = "/v1/chat/completions"


def test_it_works(server: Server) -> None:
    assert server.call("/health").json == {"status": "ok"}
    assert server.call("/ready").status == 200


@pytest.mark.case("C111")
@pytest.mark.parametrize("path", ["/v1/nope", PATH + "/", "//v1/chat/completions", "/", "/v1"])
def test_an_unknown_path_is_a_json_404(server: Server, path: str) -> None:
    """Peers redirected a POST, which loses its body, or answered in HTML."""
    answer = server.call(path, CHAT)
    assert answer.status == 404
    assert answer.error["code"] == "unknown_path"


@pytest.mark.case("C111")
@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", PATH, "POST"), ("PUT", PATH, "POST"), ("DELETE", "/v1/models", "GET, HEAD")],
)
def test_a_wrong_method_is_405_with_allow(
    server: Server, method: str, path: str, allowed: str
) -> None:
    answer = server.call(path, method=method)
    assert answer.status == 405
    assert answer.headers["Allow"] == allowed
    assert answer.error["code"] == "method_not_allowed"


@pytest.mark.case("C111")
def test_head_is_get_without_a_body(server: Server) -> None:
    answer = server.call("/v1/models", method="HEAD")
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.case("C111")
@pytest.mark.parametrize("kind", ["text/plain", "application/json; charset=latin-1", ""])
def test_the_content_type_is_not_asked_for(server: Server, kind: str) -> None:
    answer = server.call(PATH, CHAT, headers={"Content-Type": kind})
    assert answer.status == 200


@pytest.mark.case("C111")
def test_a_compressed_body_is_read_and_a_broken_one_refused(server: Server) -> None:
    raw = gzip.compress(json.dumps(CHAT).encode())
    headers = {"Content-Encoding": "gzip"}
    assert server.call(PATH, raw=raw, headers=headers).status == 200
    broken = server.call(PATH, raw=b"no gzip at all", headers=headers)
    assert broken.status == 400
    assert broken.error["type"] == "invalid_request_error"


@pytest.mark.case("C112")
def test_a_large_body_is_413_and_says_the_limit(server: Server) -> None:
    fits = CHAT | {"metadata": {"x": "y" * (MAX_BODY_BYTES - 2000)}}
    assert server.call(PATH, fits).status == 200
    answer = server.call(PATH, raw=b" " * (MAX_BODY_BYTES + 1))
    assert answer.status == 413
    assert str(MAX_BODY_BYTES) in answer.error["message"]


@pytest.mark.case("C112")
def test_a_small_bomb_is_measured_unpacked(server: Server) -> None:
    raw = gzip.compress(b" " * (MAX_BODY_BYTES * 4))
    answer = server.call(PATH, raw=raw, headers={"Content-Encoding": "gzip"})
    assert answer.status in (400, 413)
    assert server.call("/health").status == 200


@pytest.mark.case("C112")
def test_an_endless_body_is_cut(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as link:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        link.sendall(head.encode())
        block = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        for _ in range(MAX_BODY_BYTES // 0x100000 + 1):
            link.sendall(block)
        assert link.recv(1000).startswith(b"HTTP/1.1 413 ")
    assert server.call("/health").status == 200


@pytest.mark.case("C113")
@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":',
        b"",
        b"[]",
        b'"x"',
        b'{"a": NaN}',
        b"\xff\xfe",
        b'{"a": "\\ud800"}',
        b"[" * 99999,
    ],
    ids=["cut", "empty", "array", "string", "nan", "utf-8", "surrogate", "deep"],
)
@pytest.mark.parametrize("path", [PATH, "/v1/completions", "/tokenize", "/load_lora_adapter"])
def test_bad_json_is_a_400(server: Server, path: str, raw: bytes) -> None:
    answer = server.call(path, raw=raw, method="POST")
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"


def test_tokenize_wants_one_of_two(server: Server) -> None:
    for body in ({}, {"prompt": "x", "messages": CHAT["messages"]}, {"prompt": 5}):
        answer = server.call("/tokenize", {"model": "tiny"} | body)
        assert answer.status == 400
        assert answer.error["param"] == "prompt"
    assert server.call("/tokenize", {"model": "nope", "prompt": "x"}).status == 404
