"""Records of ended requests in a file, so that the next process knows them: JSON Lines.

Bounded: MAX_LINES of some 250 bytes, and as many before them in a second file, `<name>.1`. A thread
of its own writes, so nobody waits for the disk; more than MAX_LINES that wait for a disk that
hangs are forgotten, oldest first. Nothing is synced: what is written outlives the process, whatever
kills it, but not a machine that loses its power.
"""

import json
import logging
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from inference.server.generation import Outcome

log = logging.getLogger(__name__)

MAX_LINES = 1 << 16


@dataclass(frozen=True, slots=True)
class Record:
    """What a request came to here. digest None: the base. Tokens as its answer counts them."""

    request_id: str
    attempt: int
    digest: str | None
    outcome: Outcome
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class UsageFile:
    """Of one process: read() it once, put(), close()."""

    def __init__(self, path: Path, max_lines: int = MAX_LINES) -> None:
        self._path = path
        self._older = path.with_name(path.name + ".1")
        self._max_lines = max_lines
        self._num_lines = 0
        self._waiting: deque[Record] = deque(maxlen=max_lines)
        self._writer = ThreadPoolExecutor(1, "usage-file")
        self._is_failing = False

    def read(self) -> list[Record]:
        """Oldest first. Raises OSError unless the file can be read and written."""
        with open(self._path, "ab"):
            pass
        older = list(_records(self._older)) if self._older.exists() else []
        newer = list(_records(self._path))
        self._num_lines = len(newer)
        return older + newer

    def put(self, record: Record) -> None:
        self._waiting.append(record)
        # One that is not alone was announced by the first.
        if len(self._waiting) == 1:
            self._writer.submit(self._write)

    def close(self) -> None:
        """Returns when all is written."""
        self._writer.shutdown()

    def _write(self) -> None:
        records = []
        while self._waiting:
            records.append(self._waiting.popleft())
        try:
            self._append(records)
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                log.warning("usage is not written to a file: %s", error)
            self._is_failing = True

    def _append(self, records: list[Record]) -> None:
        if self._num_lines >= self._max_lines:
            os.replace(self._path, self._older)
            self._num_lines = 0
        # A line begins with its newline: what a kill cut off spoils no other.
        data = "".join("\n" + json.dumps(asdict(record)) for record in records)
        with open(self._path, "ab") as file:
            file.write(data.encode())
        self._num_lines += len(records)


def _records(path: Path) -> Iterator[Record]:
    """Those of a file; a line that a kill cut off is none."""
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                yield Record(**json.loads(line))
            except (ValueError, TypeError):
                continue
