"""The calls to a replica that placement and evaluation need, in its dialect.

Synchronous: its callers are Celery's threads.

http.client and no pooled client: few calls, and no proxy taken from the environment.
"""

import http.client
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from adapters.dialects.dialect import Answer, Call, Dialect, ReplicaError

STATE_TIMEOUT_S = 2.0
# A load that takes longer goes on at the replica, whose next report confirms it.
LOAD_TIMEOUT_S = 40.0
MAX_ANSWER_BYTES = 16 << 20


def fetch_state(dialect: Dialect, url: str) -> dict[str, Any]:
    """EngineState as JSON, as far as the engine tells. Raises ReplicaError."""
    answers = [_call(url, call, STATE_TIMEOUT_S) for call in dialect.state_calls]
    return dialect.read_state(answers)


def load(dialect: Dialect, url: str, digest: str, path: str, is_pinned: bool = False) -> None:
    """Idempotent at the replica. Raises ReplicaError with the replica's reason."""
    dialect.read_load(
        _call(url, dialect.load(digest, path, is_pinned), LOAD_TIMEOUT_S), digest, path
    )


def unload(dialect: Dialect, url: str, digest: str) -> None:
    """Absent is success. Raises ReplicaError."""
    dialect.read_unload(_call(url, dialect.unload(digest), LOAD_TIMEOUT_S))


def ask(url: str, call: Call, timeout_s: float, headers: Mapping[str, str]) -> dict[str, Any]:
    """A JSON object. Raises ReplicaError, final when the replica refused what was asked for: an
    adapter that is not there may come yet.
    """
    answer = _call(url, call, timeout_s, headers)
    found = answer.json()
    if answer.status == 200 and isinstance(found, dict):
        return found
    raise ReplicaError(answer.reason(), is_final=answer.status == 400)


def _call(
    url: str, call: Call, timeout_s: float, headers: Mapping[str, str] = MappingProxyType({})
) -> Answer:
    connection = _connection(url, timeout_s)
    raw = None if call.body is None else json.dumps(call.body).encode()
    try:
        prefix = urlsplit(url).path.rstrip("/")
        sent = {"Content-Type": "application/json", **headers}
        connection.request(call.method, prefix + call.path, raw, sent)
        response = connection.getresponse()
        return Answer(response.status, response.read(MAX_ANSWER_BYTES))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ReplicaError(f"{type(error).__name__}: {error}"[:300]) from error
    finally:
        connection.close()


def _connection(url: str, timeout_s: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ReplicaError(f"{url!r} is no http(s) URL; see REPLICA_URLS")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname, parts.port, timeout=timeout_s)
