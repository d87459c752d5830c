"""Bodies below /api are refused while they come, by a real web process over raw sockets."""

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from gateway.body_limit import MULTIPART_OVERHEAD_BYTES
from tests.gateway.conftest import Stack
from tests.gateway.live import Web, start_web

MAX_UPLOAD_BYTES = 100_000
MAX_BODY_BYTES = 10_000
LIMIT = MAX_UPLOAD_BYTES + MULTIPART_OVERHEAD_BYTES
VERSIONS = "/api/tenants/acme/adapters/bot/versions/"
MULTIPART = {"content-type": "multipart/form-data; boundary=x"}
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def small_web(running_stack: Stack) -> Iterator[Web]:
    limits = {"MAX_UPLOAD_BYTES": str(MAX_UPLOAD_BYTES), "MAX_BODY_BYTES": str(MAX_BODY_BYTES)}
    web = start_web(running_stack.folder, running_stack.database_url, [], **limits)
    yield web
    web.stop()


@pytest.fixture
def connection(small_web: Web) -> Iterator[http.client.HTTPConnection]:
    address = urlsplit(small_web.url)
    found = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
    yield found
    found.close()


def begin(connection: http.client.HTTPConnection, headers: dict[str, str]) -> None:
    connection.putrequest("POST", VERSIONS)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()


def error_of(connection: http.client.HTTPConnection) -> tuple[int, str]:
    answer = connection.getresponse()
    body: dict[str, Any] = json.loads(answer.read())
    assert list(body) == ["error"]
    assert list(body["error"]) == ["code", "message", "details"]
    return answer.status, body["error"]["code"]


@pytest.mark.parametrize(
    ("kind", "max_bytes", "code"),
    [(MULTIPART, LIMIT, "upload_too_large"), (JSON, MAX_BODY_BYTES, "too_large")],
)
@pytest.mark.parametrize("more", [{}, {"expect": "100-continue"}])
def test_an_announced_length_is_refused_before_a_byte_of_it(
    connection: http.client.HTTPConnection,
    kind: dict[str, str],
    max_bytes: int,
    code: str,
    more: dict[str, str],
) -> None:
    begin(connection, kind | more | {"content-length": str(max_bytes + 1)})
    assert error_of(connection) == (413, code)


@pytest.mark.case("C112")
def test_chunks_are_refused_when_they_pass_the_limit(
    connection: http.client.HTTPConnection,
) -> None:
    """An endless body filled peers' disks, or got an HTML page; here a 413 names the limit."""
    begin(connection, MULTIPART | {"transfer-encoding": "chunked"})
    chunk = b"8000\r\n" + bytes(0x8000) + b"\r\n"
    for _ in range(LIMIT // 0x8000 + 1):
        connection.send(chunk)
    # The last chunk is never sent: the answer did not wait for the whole.
    assert error_of(connection) == (413, "upload_too_large")


@pytest.mark.case("C112")
@pytest.mark.parametrize("is_chunked", [False, True])
def test_up_to_the_limit_the_view_answers(
    connection: http.client.HTTPConnection, is_chunked: bool
) -> None:
    """The cap that peers advertised could not be reached; here it can, to the byte."""
    body = bytes(LIMIT)
    parts = [body[:1000], body[1000:]]
    connection.request(
        "POST",
        VERSIONS,
        body=iter(parts) if is_chunked else body,
        headers=MULTIPART,
        encode_chunked=is_chunked,
    )
    status, _ = error_of(connection)
    assert status in {400, 401}


def test_a_client_that_sends_on_still_hears_why(connection: http.client.HTTPConnection) -> None:
    connection.request("POST", VERSIONS, body=bytes(4 * 2**20), headers=MULTIPART)
    assert error_of(connection) == (413, "upload_too_large")


@pytest.mark.case("C113")
@pytest.mark.parametrize("depth", [65, 1500, 100_000])
@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/uploads", "/api/tenants/{}/keys/", "/api/tenants/{}/uploads/"],
)
def test_json_too_deep(stack: Stack, path: str, depth: int) -> None:
    """A body of brackets ends parsers that recurse with a 500. Right: a 400 that names the limit,
    in the shape of where it was sent.
    """
    customer = stack.make_customer(scopes=("inference", "adapters", "admin"))
    body = '{"a":' * depth + "1" + "}" * depth
    headers = {"content-type": "application/json", "authorization": f"Bearer {customer.api_key}"}
    url = stack.web.url + path.format(customer.tenant.slug)
    answer = requests.post(url, data=body, headers=headers, timeout=30)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_request")
    assert "nests deeper" in error["message"] or "depth limit" in error["message"]
