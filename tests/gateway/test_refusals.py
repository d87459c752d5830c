"""What the endpoint refuses, and in which shape: driven by the official client and by raw HTTP."""

import contextlib
import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
import requests

from adapters.models import Adapter, ModelName
from adapters.retire import retire_adapter
from gateway.settings import MAX_BODY_BYTES
from tenants.audit import system
from tenants.scope import tenant_scope
from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import Behaviour
from tests.gateway.live import BASE_MODEL, wait_for

MESSAGES = [{"role": "user", "content": "Hi"}]
BODY = {"model": BASE_MODEL, "messages": MESSAGES}
CHAT = "/v1/chat/completions"


def post(customer: Customer, path: str = CHAT, **options: Any) -> requests.Response:
    headers = {"authorization": f"Bearer {customer.api_key}"} | options.pop("headers", {})
    return requests.post(customer.web.url + path, headers=headers, timeout=30, **options)


def check_shape(answer: requests.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.headers["x-request-id"]) == 32
    error: dict[str, Any] = answer.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["code"] == code
    return error


def test_a_retired_adapter_says_so(stack: Stack, acme: Customer) -> None:
    stack.activate(acme, "support-bot", 2)
    acme.client().chat.completions.create(model="support-bot", messages=MESSAGES)  # type: ignore[arg-type]
    with tenant_scope(acme.tenant.id):
        adapter = Adapter.objects.get(name="support-bot")
        # As tenants make them; the stack makes its adapters without.
        ModelName.objects.get_or_create(tenant=acme.tenant, adapter=adapter, name=adapter.name)
        retire_adapter(system(acme.tenant.id), adapter)

    def message(model: str) -> str:
        answer = post(acme, json=BODY | {"model": model})
        return str(answer.json()["error"]["message"]) if answer.status_code == 404 else ""

    wait_for("the push", lambda: message("support-bot"), timeout_s=1.0)
    assert "was retired on" in message("support-bot")
    assert "was retired and is not served" in message("support-bot@2")
    check_shape(post(acme, json=BODY | {"model": "support-bot"}), 404, "model_not_found")
    assert "support-bot" not in [one.id for one in acme.client().models.list()]


@pytest.mark.parametrize("key", ["gh-nope", "sk-1", f"gh-{'a' * 16}-{'b' * 43}", "ü", "x" * 5000])
def test_bad_key(stack: Stack, key: str) -> None:
    headers = {"authorization": f"Bearer {key}".encode()}
    answer = requests.post(stack.web.url + CHAT, json=BODY, headers=headers, timeout=30)  # type: ignore[arg-type]
    check_shape(answer, 401, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.case("C108")
def test_schemes(acme: Customer) -> None:
    for scheme in ("Bearer", "bearer", "BEARER"):
        headers = {"AUTHORIZATION": f"{scheme} {acme.api_key}"}
        assert requests.get(f"{acme.web.url}/v1/models", headers=headers).status_code == 200
    for header in (*(f"{one} {acme.api_key}" for one in ("Basic", "Token")), "Bearer", ""):
        answer = requests.get(f"{acme.web.url}/v1/models", headers={"authorization": header})
        check_shape(answer, 401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
    bare = requests.get(f"{acme.web.url}/v1/models", headers={"authorization": acme.api_key})
    check_shape(bare, 401, "invalid_api_key")


@pytest.mark.case("C113")
@pytest.mark.parametrize(
    "raw", [b'{"model":', b"", b"[]", b'"x"', b'{"model": NaN}', b"\xff", b"[" * 100_000]
)
def test_bad_json(acme: Customer, raw: bytes) -> None:
    error = check_shape(post(acme, data=raw), 400, "invalid_request")
    assert error["type"] == "invalid_request_error" and len(error["message"]) < 300


@pytest.mark.case("C113")
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("name", ["model", "max_tokens", "role"])
def test_a_name_that_comes_twice(stack: Stack, acme: Customer, name: str, is_stream: bool) -> None:
    """Two readers of one body could each act on another value: neither is guessed."""
    body = json.dumps(BODY | {"model": "support-bot", "max_tokens": 5, "stream": is_stream})
    raw = body.replace(f'"{name}":', f'"{name}": "other", "{name}":', 1)
    error = check_shape(post(acme, data=raw), 400, "invalid_request")
    assert repr(name) in error["message"] and "twice" in error["message"]
    assert acme.has_no_usage() and not any(one.bodies for one in stack.replicas)


@pytest.mark.parametrize("n", [17, 128, 1000])
def test_too_many_choices_cost_nothing(stack: Stack, n: int) -> None:
    """Refused before anything is reserved: one request a minute is still there for the next."""
    customer = stack.make_customer(requests_per_minute=1)
    answer = post(customer, json=BODY | {"n": n})
    assert check_shape(answer, 400, "invalid_request") == {
        "message": f"n: expected 1 to 16, got {n}.",
        "type": "invalid_request_error",
        "param": "n",
        "code": "invalid_request",
    }
    assert customer.has_no_usage() and not any(one.bodies for one in stack.replicas)
    assert len(post(customer, json=BODY | {"n": 16}).json()["choices"]) == 16


@pytest.mark.case("C114")
@pytest.mark.parametrize("is_stream", [False, True])
def test_the_engines_refusal_is_relayed_before_any_stream(
    stack: Stack, acme: Customer, is_stream: bool
) -> None:
    refusal = {
        "message": "'temperature' must be between 0.0 and 2.0, but got 9.",
        "type": "invalid_request_error",
        "param": "temperature",
        "code": "invalid_request",
    }
    for replica in stack.replicas:
        replica.behaviour = Behaviour(status=400, error=refusal)
    answer = post(acme, json=BODY | {"temperature": 9, "stream": is_stream})
    assert check_shape(answer, 400, "invalid_request") == refusal
    [row] = acme.usage(1)
    assert (row.status, row.cost, row.prompt_tokens) == ("failed", 0, None)
    assert row.error_code == "invalid_request"


@pytest.mark.case("C99")
def test_context_length(stack: Stack, acme: Customer) -> None:
    refusal = {
        "message": "This model's maximum context length is 2048 tokens. However, you requested 9.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    for replica in stack.replicas:
        replica.behaviour = Behaviour(status=400, error=refusal)
    with pytest.raises(openai.BadRequestError) as caught:
        acme.client().chat.completions.create(**BODY)  # type: ignore[call-overload]
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_an_upstream_error_without_shape_says_nothing(stack: Stack, acme: Customer) -> None:
    for replica in stack.replicas:
        replica.behaviour = Behaviour(status=500, error={"trace": "File secret.py"})
    answer = post(acme, json=BODY)
    check_shape(answer, 500, "internal_error")
    assert "secret" not in answer.text


def test_lora_path_that_disagrees(stack: Stack, acme: Customer) -> None:
    stack.activate(acme, "other-bot")
    body = BODY | {"model": "support-bot", "lora_path": "other-bot"}
    assert check_shape(post(acme, json=body), 400, "invalid_request")["param"] == "lora_path"
    check_shape(post(acme, json=BODY | {"lora_path": "nope"}), 404, "model_not_found")


@pytest.mark.case("C111")
def test_slashes_methods_and_paths(acme: Customer) -> None:
    for path in (CHAT + "/", "/" + CHAT, CHAT.replace("/", "//")):
        assert post(acme, path, json=BODY, allow_redirects=False).status_code == 200
    url, headers = acme.web.url, {"authorization": f"Bearer {acme.api_key}"}
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        answer = requests.request(method, url + CHAT, headers=headers, timeout=30)
        check_shape(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == "POST, OPTIONS"
    check_shape(requests.get(url + "/v1/nope", headers=headers, timeout=30), 404, "not_found")
    check_shape(requests.get(url + "/v1", headers=headers, timeout=30), 404, "not_found")
    head = requests.head(url + "/v1/models", headers=headers, timeout=30)
    assert head.status_code == 200 and head.content == b""
    assert int(head.headers["content-length"]) > 0


def test_a_base_url_of_another_api(acme: Customer) -> None:
    """Without /v1, and Ollama's: an answer that a client can show, not a page about cookies."""
    error = check_shape(post(acme, "/chat/completions", json=BODY), 404, "not_found")
    assert "/v1" in error["message"]
    listed = requests.get(f"{acme.web.url}//models/", timeout=30)
    assert "/v1" in check_shape(listed, 404, "not_found")["message"]
    answer = post(acme, "/api/chat", json=BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert post(acme, "/sign-in", json=BODY).status_code == 405


@pytest.mark.case("C111")
@pytest.mark.parametrize("kind", ["text/plain", "application/json; charset=latin-1", None])
def test_media_types_are_not_judged(acme: Customer, kind: str | None) -> None:
    headers = {"content-type": kind}
    assert post(acme, data=json.dumps(BODY), headers=headers).status_code == 200


def test_an_encoded_body_is_refused(acme: Customer) -> None:
    answer = post(acme, data=b"\x1f\x8b", headers={"content-encoding": "gzip"})
    check_shape(answer, 415, "unsupported_media_type")


@pytest.mark.case("C110")
def test_preflight(stack: Stack) -> None:
    headers = {
        "Origin": "https://app.example.org",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
    }
    answer = requests.options(stack.web.url + CHAT, headers=headers, timeout=30)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == "https://app.example.org"
    allowed = answer.headers["access-control-allow-headers"]
    assert allowed == "authorization,content-type,x-stainless-lang"
    assert "POST" in answer.headers["access-control-allow-methods"]
    foreign = requests.options(
        stack.web.url + CHAT, headers=headers | {"Origin": "https://evil.example"}, timeout=30
    )
    assert "access-control-allow-origin" not in foreign.headers


@pytest.mark.case("C110")
def test_errors_carry_cors_headers(stack: Stack) -> None:
    headers = {"Origin": "https://app.example.org", "authorization": "Bearer gh-nope"}
    answer = requests.post(stack.web.url + CHAT, json=BODY, headers=headers, timeout=30)
    check_shape(answer, 401, "invalid_api_key")
    assert answer.headers["access-control-allow-origin"] == "https://app.example.org"
    assert "access-control-allow-credentials" not in answer.headers
    assert answer.headers["vary"] == "origin"


@pytest.mark.case("C112")
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_too_large(acme: Customer, is_chunked: bool) -> None:
    def parts() -> Any:
        for _ in range(MAX_BODY_BYTES // 2**16 + 8):
            yield b" " * 2**16

    fits = json.dumps(BODY).encode()
    fits += b" " * (MAX_BODY_BYTES - len(fits))
    assert post(acme, data=fits).status_code == 200
    body = parts() if is_chunked else b" " * (MAX_BODY_BYTES + 1)
    error = check_shape(post(acme, data=body), 413, "request_too_large")
    assert str(MAX_BODY_BYTES) in error["message"]


@pytest.mark.case("C112")
def test_an_announced_body_is_refused_without_being_sent(acme: Customer) -> None:
    where = urlsplit(acme.web.url)
    with socket.create_connection((where.hostname or "", where.port or 0), 10) as raw:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {acme.api_key}\r\n"
        raw.sendall(f"{head}Content-Length: {10**12}\r\n\r\n".encode())
        with contextlib.closing(http.client.HTTPResponse(raw)) as answer:
            answer.begin()
            assert answer.status == 413


@pytest.mark.case("C79")
def test_request_ids_are_ours(acme: Customer) -> None:
    ids = set()
    for given in ("mine-1", "mine-1", "x" * 129, "a b", "ü"):
        answer = post(acme, json=BODY, headers={"x-request-id": given.encode()})
        ids.add(answer.headers["x-request-id"])
        echoed = answer.headers.get("x-client-request-id")
        assert echoed == ("mine-1" if given == "mine-1" else None)
    assert len(ids) == 5
    assert {row.request_id for row in acme.usage(5)} == ids
