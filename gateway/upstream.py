"""aiohttp to one replica, in its dialect: open a stream, read its events.

Errors are sorted by what the caller must do about them.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
import orjson
from django.conf import settings

from adapters.dialects.dialect import Ability, Dialect
from gateway.openai.errors import from_upstream
from gateway.openai.relay import SseParser
from gateway.openai.schema import Endpoint

PATHS: dict[Endpoint, str] = {
    "chat.completions": "/v1/chat/completions",
    "completions": "/v1/completions",
}
MAX_ERROR_BYTES = 64 * 2**10


@dataclass(frozen=True)
class Sender:
    """Beside the body, for the replica: our id of the request, where its usage may be asked for
    later; 1, or more after lost replicas; the tenant's weight beside others' in its queue.
    """

    request_id: str | None
    attempt: int
    weight: float


Loss = Literal["connect", "timeout", "cut"]


class ReplicaLost(Exception):
    """The replica could not be reached, fell silent, or broke off: another one may do it."""

    def __init__(self, message: str, kind: Loss = "cut") -> None:
        super().__init__(message)
        self.kind = kind


class ReplicaBusy(Exception):
    """The replica lives but will not take this request now."""


class AdapterGone(ReplicaBusy):
    """The replica does not hold the adapter that it reported a moment ago."""


def open_session() -> aiohttp.ClientSession:
    """No total timeout: a stream may last; silence ends it.

    No limit: admission bounds the concurrency.
    """
    timeout = aiohttp.ClientTimeout(
        total=None,
        sock_connect=settings.UPSTREAM_CONNECT_TIMEOUT_S,
        sock_read=settings.UPSTREAM_IDLE_TIMEOUT_S,
    )
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
    return aiohttp.ClientSession(
        timeout=timeout, connector=connector, auto_decompress=False, trust_env=False
    )


@asynccontextmanager
async def open_stream(
    session: aiohttp.ClientSession,
    url: str,
    dialect: Dialect,
    endpoint: Endpoint,
    body: dict[str, Any],
    sender: Sender,
) -> AsyncIterator[AsyncIterator[bytes]]:
    """The payloads of the replica's events.

    Leaving early closes the connection, which aborts the generation.

    Raises ApiError for what the replica refuses for good, ReplicaBusy and ReplicaLost for what
    another may do.
    """
    headers = headers_of(sender, dialect)
    try:
        async with session.post(
            url + PATHS[endpoint], data=orjson.dumps(body), headers=headers, allow_redirects=False
        ) as response:
            if response.status != 200:
                await raise_refusal(response, dialect)
            yield read_events(response)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ReplicaLost(f"{url}: {type(error).__name__}: {error}", kind_of(error)) from error


def headers_of(sender: Sender, dialect: Dialect) -> dict[str, str]:
    headers = {"content-type": "application/json", "accept": "text/event-stream"}
    if Ability.TENANT_TURNS in dialect.abilities:
        headers["x-tenant-weight"] = f"{sender.weight:g}"
    if sender.request_id is not None and Ability.USAGE in dialect.abilities:
        # Who settles for this process, should it be killed, asks by them.
        headers |= {"x-request-id": sender.request_id, "x-request-attempt": str(sender.attempt)}
    return headers


def kind_of(error: Exception) -> Loss:
    # A connection that was not answered in time is both: there is nobody.
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return "connect"
    return "timeout" if isinstance(error, TimeoutError) else "cut"


async def raise_refusal(response: aiohttp.ClientResponse, dialect: Dialect) -> None:
    error = dialect.read_error(await response.content.read(MAX_ERROR_BYTES))
    code = (error or {}).get("code")
    where = f"{response.url.origin()}: {response.status} {code}"
    # The model was resolved before: a replica that does not know the digest has just lost it.
    if code == "model_not_found":
        raise AdapterGone(where)
    if response.status in {429, 503}:
        raise ReplicaBusy(where)
    raise from_upstream(response.status, error)


async def read_events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Until the replica closes.

    A reader that pauses makes aiohttp stop reading, and so the replica wait.
    """
    parser = SseParser()
    async for chunk in response.content.iter_any():
        for payload in parser.feed(chunk):
            yield payload
