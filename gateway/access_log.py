"""One line of JSON for each request at /v1 and each generation on a socket: who asked for what,
what it came to, how long it took. Never a prompt, an answer, a key's secret or an address.

A thread writes what is collected: the loop waits for no pipe and no disk. Whoever reads the lines
may stand still; then they are dropped, and counted.
"""

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson
from django.conf import settings

from gateway import metrics
from tenants.auth import Principal
from tenants.metering import UsageEnd

log = logging.getLogger(__name__)

# For how long lines are collected: written one by one, each would wake the thread.
COLLECT_S = 0.05
# What a pipe takes in one piece: lines of several processes never mix.
MAX_WRITE_BYTES = 4096
MAX_WAITING_LINES = 10_000
# How long the end of a process waits for a reader that stands still.
CLOSE_TIMEOUT_S = 1.0


class Generated(Protocol):
    """Of a generation: what was booked, and when (monotonic) it had a replica and a first token."""

    end: UsageEnd | None
    routed_at: float | None
    first_token_at: float | None


@dataclass(slots=True)
class Visit:
    """One request, filled in as it becomes known. received_at: of the monotonic clock."""

    request_id: str
    received_at: float
    principal: Principal | None = None
    model: str = ""
    generation: Generated | None = None
    error_code: str = ""


class AccessLog:
    """Of one process, to a descriptor (standard output), if settings.ACCESS_LOG says so."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = sys.stdout.fileno() if descriptor is None else descriptor
        self._is_on = settings.ACCESS_LOG == "json"
        self._lines: deque[bytes] = deque()
        self._has_lines = threading.Event()
        self._is_over = False
        # A daemon: a reader that stands still must not keep the process.
        self._thread = threading.Thread(target=self._write_forever, daemon=True)

    def start(self) -> None:
        if self._is_on:
            self._thread.start()

    def write(self, visit: Visit, route: str, status: int) -> None:
        """At the end of the request. status: of its answer; 499 when the client had gone."""
        if not self._is_on:
            return
        if len(self._lines) >= MAX_WAITING_LINES:
            metrics.ACCESS_LOG_DROPPED.inc()
            return
        self._lines.append(orjson.dumps(entry(visit, route, status)) + b"\n")
        if not self._has_lines.is_set():
            self._has_lines.set()

    def close(self) -> None:
        """Writes what waits."""
        self._is_over = True
        self._has_lines.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_TIMEOUT_S)

    def _write_forever(self) -> None:
        while not self._is_over:
            self._has_lines.wait()
            time.sleep(COLLECT_S)
            self._has_lines.clear()
            self._flush()
        self._flush()

    def _flush(self) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        try:
            for piece in pieces(lines):
                write_all(self._descriptor, piece)
        except OSError as error:
            metrics.ACCESS_LOG_DROPPED.inc(len(lines))
            log.warning("%d lines of the access log were dropped: %s", len(lines), error)


def pieces(lines: list[bytes]) -> Iterator[bytes]:
    """Whole lines, as many as a pipe takes in one."""
    piece = b""
    for line in lines:
        if piece and len(piece) + len(line) > MAX_WRITE_BYTES:
            yield piece
            piece = b""
        piece += line
    if piece:
        yield piece


def write_all(descriptor: int, piece: bytes) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]


def entry(visit: Visit, route: str, status: int) -> dict[str, Any]:
    """The line as documented in docs/access-log.md; what is not known, or was not, is null."""
    caller, ran, now = visit.principal, visit.generation, time.monotonic()
    end = None if ran is None else ran.end
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request_id": visit.request_id,
        "route": route,
        "status": status,
        "error_code": visit.error_code or (end.error_code if end else "") or None,
        "tenant": caller.tenant_slug if caller else None,
        "key": (caller.key_public_id or None) if caller else None,
        "user_id": caller.user_id if caller else None,
        "model": visit.model or None,
        **_came_to(end),
        "queue_ms": _milliseconds(visit, ran.routed_at if ran else None),
        "first_token_ms": _milliseconds(visit, ran.first_token_at if ran else None),
        "total_ms": _milliseconds(visit, now),
    }


def _came_to(end: UsageEnd | None) -> dict[str, Any]:
    """As the ledger has it."""
    counts = end.counts if end else None
    return {
        "served": end.start.model if end else None,
        "digest": (end.start.digest or None) if end else None,
        "replica": end.replica if end else None,
        "outcome": end.status if end else None,
        "prompt_tokens": counts.prompt if counts else None,
        "cached_tokens": counts.cached if counts else None,
        "completion_tokens": counts.completion if counts else None,
    }


def _milliseconds(visit: Visit, at: float | None) -> float | None:
    return None if at is None else round(1000 * (at - visit.received_at), 2)
