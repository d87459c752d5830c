"""Health, readiness, metrics, the browser application's page, and settings that cannot be."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from django.core.checks import Error
from django.http import HttpResponse
from django.test import RequestFactory

from gateway import checks, spa
from tests.gateway.conftest import Customer, Stack
from tests.gateway.live import ROOT_DIR, Web, start_web, wait_for
from tests.services import free_port

BODY = {"model": "support-bot", "messages": [{"role": "user", "content": "Hi"}]}


def get(web: Web, path: str, **options: object) -> requests.Response:
    return requests.get(web.url + path, timeout=30, allow_redirects=False, **options)  # type: ignore[arg-type]


def test_it_works(stack: Stack) -> None:
    assert get(stack.web, "/healthz").json() == {"status": "ok"}
    ready = get(stack.web, "/readyz")
    assert ready.status_code == 200
    checked = {"database": "ok", "redis": "ok", "replicas": "ok"}
    assert ready.json() == {"status": "ok", "checks": checked}
    assert requests.head(f"{stack.web.url}/healthz", timeout=30).content == b""


@contextlib.contextmanager
def web_without(stack: Stack, **environ: str) -> Iterator[Web]:
    web = start_web(stack.folder, stack.database_url, ["http://127.0.0.1:9"], **environ)
    try:
        yield web
    finally:
        web.stop()


def test_what_is_missing_is_named(stack: Stack) -> None:
    dead = f"redis://127.0.0.1:{free_port()}/0"
    with web_without(stack, REDIS_URL=dead, METRICS_TOKEN="open-sesame") as web:
        assert get(web, "/healthz").status_code == 200
        answer = get(web, "/readyz")
        assert answer.status_code == 503
        found = answer.json()["checks"]
        assert found["database"] == "ok"
        assert found["redis"].startswith("failed: ")
        assert found["replicas"] == "no replica is ready"
        # Without the counters nobody is admitted, and nobody is told that his key is wrong.
        customer = stack.make_customer()
        headers = {"authorization": f"Bearer {customer.api_key}"}
        body = BODY | {"model": "tiny-base"}
        refused = requests.post(
            f"{web.url}/v1/chat/completions", json=body, headers=headers, timeout=30
        )
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "quota_unavailable")
        assert get(web, "/metrics").status_code == 401
        token = {"authorization": "Bearer open-sesame"}
        assert get(web, "/metrics", headers=token).status_code == 200


def test_metrics(stack: Stack, acme: Customer) -> None:
    acme.client().chat.completions.create(**BODY)  # type: ignore[call-overload]
    text = get(stack.web, "/metrics").text
    for part in (
        'grafthouse_requests_total{route="chat/completions",status="2xx"}',
        'grafthouse_time_to_first_token_seconds_count{route="chat/completions"}',
        'grafthouse_tokens_total{kind="completion"}',
        'grafthouse_generations_total{status="finished"}',
        f'grafthouse_replica_up{{replica="{stack.replicas[0].url}"}} 1.0',
        "grafthouse_open_streams 0.0",
        "grafthouse_usage_writer_queue",
        "grafthouse_digest_mismatches_total",
    ):
        assert part in text
    # A label a tenant could fill would be unbounded.
    assert acme.tenant.slug not in text and "support-bot" not in text


def test_the_api_answers_in_its_own_shape(stack: Stack) -> None:
    for path in ("/api/nope", "/api/"):
        answer = get(stack.web, path)
        assert answer.status_code == 404
        assert list(answer.json()["error"]) == ["code", "message", "details"]
    schema = get(stack.web, "/api/schema/", headers={"accept": "application/json"})
    assert schema.status_code in {200, 401, 403}


def test_the_page(settings: Any, tmp_path: Path) -> None:
    settings.FRONTEND_DIR = tmp_path
    html = {"HTTP_ACCEPT": "text/html"}
    ask = RequestFactory()
    unbuilt = spa.page(ask.get("/acme/adapters", **html))  # type: ignore[arg-type]
    assert unbuilt.status_code == 503
    (tmp_path / "index.html").write_text("<!doctype html><title>Grafthouse</title>")
    page = spa.page(ask.get("/t/acme/adapters/bot.v2", **html))  # type: ignore[arg-type]
    assert isinstance(page, HttpResponse) and b"Grafthouse" in page.content
    assert "no-cache" in page["cache-control"]
    assert spa.page(ask.get("/assets/gone-12345678.js", **html)).status_code == 404  # type: ignore[arg-type]
    assert spa.page(ask.get("/x", HTTP_ACCEPT="application/json")).status_code == 404  # type: ignore[arg-type]
    assert spa.page(ask.post("/x")).status_code == 405


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("REPLICA_URLS", [], "gateway.E001"),
        ("REPLICA_URLS", ["127.0.0.1:8100"], "gateway.E002"),
        ("REPLICA_URLS", ["http://a:1", "http://a:1/"], "gateway.E003"),
        ("REPLICA_TOKEN", "short", "gateway.E010"),
        ("PORT", 70_000, "gateway.E004"),
        ("DEFAULT_MAX_TOKENS", 0, "gateway.E005"),
        ("CACHE_TTL_S", 5.0, "gateway.E006"),
        ("WRITE_TIMEOUT_S", 0, "gateway.E005"),
        ("MAX_HEADERS", 129, "gateway.E009"),
        ("MAX_BODIES_BYTES", 5 * 2**20, "gateway.E011"),
        ("CORS_ORIGINS", ["*"], "gateway.E007"),
        ("CSRF_TRUSTED_ORIGINS", ["https://a.example/path"], "gateway.E007"),
    ],
)
def test_impossible_settings(settings: Any, name: str, value: object, found: str) -> None:
    assert checks.check_settings(None) == []
    setattr(settings, name, value)
    problems = checks.check_settings(None)
    assert [one.id for one in problems] == [found]
    assert isinstance(problems[0], Error)


def test_without_lifespan_the_reason_is_said(stack: Stack) -> None:
    port = free_port()
    options = ["--port", str(port), "--lifespan", "off"]
    command = [sys.executable, "-m", "uvicorn", "gateway.asgi:application", *options]
    with subprocess.Popen(command, cwd=ROOT_DIR, stderr=subprocess.PIPE) as process:
        web = Web(f"http://127.0.0.1:{port}", process, Path())

        def answered() -> bool:
            with contextlib.suppress(requests.ConnectionError):
                return get(web, "/v1/models").status_code == 500
            return False

        wait_for("an answer", answered)
        process.terminate()
        assert process.stderr is not None
        assert b"lifespan on" in process.stderr.read()
