"""HTTP to one house: its answers as JSON, its errors as one Failure each."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from urllib.parse import quote

import httpx2

from grafthouse.account import Account
from grafthouse.failure import Exit, Failure

# An answer may wait behind an upload that is being written to disk; no stream is silent longer.
TIMEOUT = httpx2.Timeout(120.0, connect=10.0)
MAX_MESSAGE_CHARS = 1000
_EXITS = {401: Exit.NOT_ALLOWED, 403: Exit.NOT_ALLOWED, 404: Exit.NOT_FOUND}


class House:
    """Asks as the key's tenant. Close it, or use it in a with."""

    def __init__(self, account: Account) -> None:
        self.url = account.url
        self._http = httpx2.Client(
            base_url=account.url,
            headers={"Authorization": f"Bearer {account.api_key}"},
            timeout=TIMEOUT,
            # A connection that was not made has done nothing: safe for every method.
            transport=httpx2.HTTPTransport(retries=2),
        )

    def __enter__(self) -> "House":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    @cached_property
    def tenant(self) -> dict[str, Any]:
        """The key's: slug, name, plan."""
        found = self.call("GET", "/api/tenants/")["results"]
        if not found:
            raise Failure("The key belongs to no tenant.", Exit.NOT_ALLOWED)
        return dict(found[0])

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """Below /api/tenants/{the key's}/."""
        return self.call(method, f"/api/tenants/{self.tenant['slug']}/{path}", **options)

    def call(self, method: str, path: str, **options: Any) -> Any:
        with self._errors():
            answer = self._http.request(method, path, **options)
        _require_success(answer)
        return _as_json(answer) if answer.content else None

    def rows(self, path: str, max_rows: int, **query: str) -> list[dict[str, Any]]:
        """At most so many rows of a list of the tenant's, over as many pages as it takes."""
        rows: list[dict[str, Any]] = []
        while len(rows) < max_rows:
            params = {**query, "limit": min(100, max_rows - len(rows)), "offset": len(rows)}
            page = self.ask("GET", path, params=params)
            rows += page["results"]
            if not page["next"] or not page["results"]:
                break
        return rows

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks of an answer that comes as server-sent events, to [DONE]."""
        with self._errors(), self._http.stream("POST", path, json=body) as answer:
            if answer.status_code >= 400:
                answer.read()
            _require_success(answer)
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    return
                if line.startswith("data: "):
                    yield _checked_chunk(line[6:])
        raise Failure("The answer broke off before its end.")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise Failure(f"{self.url} cannot be reached: {error}", Exit.UNREACHABLE) from error
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            text = f"{type(error).__name__} {error}".strip()
            raise Failure(f"{self.url}: {text}", Exit.UNREACHABLE) from error


def adapter_path(name: str, *rest: object) -> str:
    """Of a tenant's adapter; whatever the name holds, it stays one step of the path."""
    return "/".join(["adapters", quote(name, safe=""), *map(str, rest)]) + "/"


def alias_path(name: str) -> str:
    return f"aliases/{quote(name, safe='')}/"


def _checked_chunk(raw: str) -> dict[str, Any]:
    try:
        chunk = json.loads(raw)
    except ValueError:
        chunk = None
    if not isinstance(chunk, dict):
        raise Failure(f"The answer holds {raw[:40]!r} instead of JSON: is it a house?")
    if "error" in chunk:
        raise Failure(_message(chunk) or "The house failed while it was answering.")
    return chunk


def _require_success(answer: httpx2.Response) -> None:
    if answer.is_success:
        return
    try:
        found = answer.json()
    except ValueError:
        found = None
    message = _message(found) or f"HTTP {answer.status_code} {answer.reason_phrase}"
    if wait := answer.headers.get("retry-after"):
        message += f" (retry after {wait} s)"
    default = Exit.REFUSED if answer.status_code < 500 else Exit.FAILED
    reason = str(_error(found).get("code", ""))
    raise Failure(message, _EXITS.get(answer.status_code, default), reason)


def _error(body: object) -> dict[str, Any]:
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}


def _message(body: object) -> str:
    error = _error(body)
    details = error.get("details") or []
    fields = [one for one in details if isinstance(one, dict)]
    told = [f"{one.get('field', '')}: {one.get('message', '')}" for one in fields]
    parts = [str(error.get("message", "")), *told]
    return " ".join(" ".join(parts).split())[:MAX_MESSAGE_CHARS]


def _as_json(answer: httpx2.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        kind = answer.headers.get("content-type", "nothing")
        raise Failure(f"{answer.url} answered {kind} instead of JSON: is it a house?") from None
