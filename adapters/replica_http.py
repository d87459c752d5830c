"""The three calls to a replica that placement needs. Synchronous: its callers are Celery's threads.

http.client and no pooled client: few calls, and no proxy taken from the environment.
"""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

STATE_TIMEOUT_S = 2.0
LOAD_TIMEOUT_S = 60.0
MAX_ANSWER_BYTES = 16 << 20

# The replica looked at the bytes and refused them: asking again changes nothing.
_FINAL_STATUSES = frozenset({400, 409})


class ReplicaError(Exception):
    """is_final: the answer will not change by asking again."""

    def __init__(self, message: str, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


def fetch_state(url: str) -> dict[str, Any]:
    """EngineState as JSON. Raises ReplicaError."""
    status, answer = _call(url, "GET", "/state", None, STATE_TIMEOUT_S)
    if status != 200 or not isinstance(answer.get("adapters"), list):
        raise ReplicaError(f"/state answered {status}: {_reason(answer)}")
    return answer


def load(url: str, digest: str, path: str) -> None:
    """Idempotent at the replica. Raises ReplicaError with the replica's reason."""
    body = {"lora_name": digest, "lora_path": path, "pinned": False}
    status, answer = _call(url, "POST", "/load_lora_adapter", body, LOAD_TIMEOUT_S)
    if status != 200:
        raise ReplicaError(_reason(answer) or f"status {status}", status in _FINAL_STATUSES)
    if answer.get("digest") != digest:
        # The bytes on the replica's disk are not those that were published.
        raise ReplicaError(f"loaded {str(answer.get('digest'))[:64]}, expected {digest}")


def unload(url: str, digest: str) -> None:
    """Absent is success. Raises ReplicaError."""
    body = {"lora_name": digest}
    status, answer = _call(url, "POST", "/unload_lora_adapter", body, LOAD_TIMEOUT_S)
    if status not in (200, 404):
        raise ReplicaError(_reason(answer) or f"status {status}")


def _call(
    url: str, method: str, path: str, body: object, timeout_s: float
) -> tuple[int, dict[str, Any]]:
    connection = _connection(url, timeout_s)
    raw = None if body is None else json.dumps(body).encode()
    try:
        prefix = urlsplit(url).path.rstrip("/")
        connection.request(method, prefix + path, raw, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read(MAX_ANSWER_BYTES))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ReplicaError(f"{type(error).__name__}: {error}"[:300]) from error
    finally:
        connection.close()
    return response.status, answer if isinstance(answer, dict) else {}


def _connection(url: str, timeout_s: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ReplicaError(f"{url!r} is no http(s) URL; see REPLICA_URLS")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname, parts.port, timeout=timeout_s)


def _reason(answer: dict[str, Any]) -> str:
    error = answer.get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or "")[:1000]
