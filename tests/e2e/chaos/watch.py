"""Looks on, beside the house: at the versions' rows, and at what the replica says it holds."""

import contextlib
import sqlite3
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import requests

WORKING = ("uploaded", "validating", "activating")
ROWS = """
SELECT v.id, a.name || '@' || v.number, v.state, v.digest, v.attempt
FROM adapters_adapterversion v JOIN adapters_adapter a ON a.id = v.adapter_id
"""
POLL_INTERVAL_S = 0.02
SILENCE_S = 1.0


@dataclass
class RowWatch:
    """longest_s: by state, and of all work on one version; digests: by label, as rows had them."""

    path: Path
    longest_s: dict[str, float] = field(default_factory=dict)
    longest_work_s: float = 0.0
    digests: dict[str, set[str]] = field(default_factory=dict)
    # What the last look found in work, by state.
    working: dict[str, int] = field(default_factory=dict)
    _since: dict[int, tuple[tuple[str, int], float]] = field(default_factory=dict)
    _work_since: dict[int, float] = field(default_factory=dict)

    def run(self, is_over: threading.Event) -> None:
        uri = f"file:{self.path}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=30)) as rows:
            while not is_over.wait(POLL_INTERVAL_S):
                self.look(rows)

    def look(self, rows: sqlite3.Connection) -> None:
        now, found = time.monotonic(), rows.execute(ROWS).fetchall()
        self.working = dict.fromkeys(WORKING, 0)
        for row_id, label, state, digest, attempt in found:
            if digest:
                self.digests.setdefault(label, set()).add(digest)
            if state not in WORKING:
                self._since.pop(row_id, None)
                self._work_since.pop(row_id, None)
                continue
            self.working[state] += 1
            self._count(now, row_id, (state, attempt))
        for gone in self._work_since.keys() - {row[0] for row in found}:
            del self._work_since[gone]

    def _count(self, now: float, row_id: int, stage: tuple[str, int]) -> None:
        if self._since.get(row_id, ((), 0.0))[0] != stage:
            self._since[row_id] = (stage, now)
        spent_s = now - self._since[row_id][1]
        self.longest_s[stage[0]] = max(self.longest_s.get(stage[0], 0.0), spent_s)
        work_s = now - self._work_since.setdefault(row_id, now)
        self.longest_work_s = max(self.longest_work_s, work_s)


@dataclass
class ReplicaWatch:
    """reports: (Unix time, digests) of each answer of its /state."""

    url: str
    reports: list[tuple[float, frozenset[str]]] = field(default_factory=list)

    def run(self, is_over: threading.Event) -> None:
        with requests.Session() as session:
            while not is_over.wait(5 * POLL_INTERVAL_S):
                with contextlib.suppress(requests.RequestException):
                    # While it loads its model it has no state.
                    held = session.get(f"{self.url}/state", timeout=5).json().get("adapters", ())
                    self.reports.append((time.time(), frozenset(one["digest"] for one in held)))

    def has_reported(self, digest: str, since: float, until: float) -> bool:
        """Or was not heard of at the end of that time: killed just then."""
        heard = [held for at, held in self.reports if since <= at <= until]
        is_silent = not any(until - SILENCE_S <= at <= until for at, _ in self.reports)
        return is_silent or any(digest in held for held in heard)
