"""Settings that cannot be: found by `manage.py check` and at every start, each with an id and a way
out.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register

from adapters.dialects import split_url
from gateway.bodies import LARGE_SHARE

MIN_PORT, MAX_PORT = 1, 65535
POSITIVE = (
    *("DEFAULT_MAX_TOKENS", "MAX_CHOICES", "MAX_BODY_BYTES", "MAX_BODIES_BYTES"),
    *("NUM_REPLICAS_PER_ADAPTER", "NUM_WEB_WORKERS"),
    *("UPSTREAM_IDLE_TIMEOUT_S", "BODY_TIMEOUT_S", "MIN_UPLOAD_BYTES_PER_S"),
    *("HEAD_TIMEOUT_S", "KEEP_ALIVE_TIMEOUT_S", "WRITE_TIMEOUT_S"),
    *("MAX_SOCKETS_PER_TENANT", "MAX_GENERATIONS_PER_SOCKET", "SOCKET_IDLE_TIMEOUT_S"),
    *("RESUME_WINDOW_S", "MAX_RESUME_BYTES", "MAX_RESUME_TOTAL_BYTES"),
    *("MAX_CONNECTIONS", "MAX_STREAMS", "MAX_HEADERS", "MAX_HEADER_BYTES"),
)
MAX_SOCKET_HEADERS = 128
MIN_TOKEN_CHARS = 24


@register(Tags.compatibility)
def check_settings(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    return [*check_replicas(), *check_numbers(), *check_sizes(), *check_origins()]


def check_replicas() -> Iterator[CheckMessage]:
    urls = settings.REPLICA_URLS
    if not urls and not settings.REPLICA_TOKEN:
        yield Error(
            "REPLICA_URLS is empty: no request could be served.",
            hint="Set it to the URLs of the inference replicas, separated by commas, or set "
            "REPLICA_TOKEN, with which they announce themselves.",
            id="gateway.E001",
        )
    if 0 < len(settings.REPLICA_TOKEN) < MIN_TOKEN_CHARS:
        yield Error(
            f"REPLICA_TOKEN: expected {MIN_TOKEN_CHARS} characters at least: who guesses it gets "
            "the prompts of every tenant.",
            id="gateway.E010",
        )
    for url in urls:
        yield from check_replica(url)
    if len({url.rstrip("/").rpartition("+")[2] for url in urls}) != len(urls):
        yield Error("REPLICA_URLS names a replica twice.", id="gateway.E003")


def check_replica(configured: str) -> Iterator[CheckMessage]:
    try:
        url = split_url(configured)[1]
    except ValueError as error:
        yield Error(f"REPLICA_URLS: {error}.", id="gateway.E008")
        return
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.netloc or parts.query:
        yield Error(
            f"REPLICA_URLS: {url!r} is not an http(s) URL.",
            hint="Expected something like http://127.0.0.1:8100 or vllm+http://10.0.0.2:8000.",
            id="gateway.E002",
        )


def check_numbers() -> Iterator[CheckMessage]:
    if not MIN_PORT <= settings.PORT <= MAX_PORT:
        yield Error(f"PORT: expected 1 to {MAX_PORT}, got {settings.PORT}.", id="gateway.E004")
    for name in POSITIVE:
        if getattr(settings, name) < 1:
            yield Error(f"{name}: expected at least 1.", id="gateway.E005")
    if not 0 < settings.CACHE_TTL_S <= 1:
        yield Error(
            f"CACHE_TTL_S: expected above 0 and at most 1, got {settings.CACHE_TTL_S}.",
            hint="A revoked key is promised to be refused within a second.",
            id="gateway.E006",
        )


def check_sizes() -> Iterator[CheckMessage]:
    if settings.MAX_HEADERS > MAX_SOCKET_HEADERS:
        message = f"MAX_HEADERS: expected at most {MAX_SOCKET_HEADERS}, got {settings.MAX_HEADERS}."
        yield Error(message, hint="A WebSocket's handshake takes no more.", id="gateway.E009")
    if settings.MAX_BODY_BYTES > settings.MAX_BODIES_BYTES * LARGE_SHARE:
        yield Error(
            f"MAX_BODY_BYTES: expected at most {LARGE_SHARE:.0%} of MAX_BODIES_BYTES, got "
            f"{settings.MAX_BODY_BYTES} of {settings.MAX_BODIES_BYTES}.",
            hint="The largest request would never find room.",
            id="gateway.E011",
        )


def check_origins() -> Iterator[CheckMessage]:
    for origin in [*settings.CORS_ORIGINS, *settings.CSRF_TRUSTED_ORIGINS]:
        parts = urlsplit(origin)
        if not parts.scheme or not parts.netloc or parts.path:
            yield Error(
                f"{origin!r} is not an origin.",
                hint="Expected scheme and host, as in https://app.example.org: no path, no *.",
                id="gateway.E007",
            )
    if settings.SECURE_COOKIES and settings.DEBUG:
        yield Warning("DEBUG is on where SECURE_COOKIES is.", id="gateway.W001")
