"""What each request came to, by the id that its sender gave it: the replica's own record.

Whoever meters asks for it when the process that counted has died. Kept in memory: what runs, and
the last MAX_RECORDS that ended, some 25 MiB. All of it belongs to the event loop.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from inference.server.attempt import Attempt
from inference.server.generation import Generation
from inference.server.usage_file import Record, UsageFile

# Two minutes of 500 requests a second: an asker waits for one before it takes a process for dead.
MAX_RECORDS = 1 << 16


class UsageLog:
    """file: outlives the process; close() it. Raises OSError where that cannot be used."""

    def __init__(self, file: UsageFile | None = None, max_records: int = MAX_RECORDS) -> None:
        self._file = file
        self._max_records = max_records
        self._running: dict[Generation, Attempt] = {}
        # The one that ended last stands last.
        self._ended: OrderedDict[str, Record] = OrderedDict()
        for record in () if file is None else file.read():
            self._remember(record)

    @contextmanager
    def follow(self, attempt: Attempt | None, generation: Generation) -> Iterator[None]:
        """Known as running meanwhile, then by how it ended: it has to be closed inside.

        None: its sender gave no id, nobody can ask for it.
        """
        if attempt is None:
            yield
            return
        self._running[generation] = attempt
        try:
            yield
        finally:
            del self._running[generation]
            record = record_of(attempt, generation)
            self._remember(record)
            if self._file is not None:
                self._file.put(record)

    def find(self, request_ids: Sequence[str]) -> list[Record]:
        """What is known of them; an id that is not known has no record."""
        wanted = frozenset(request_ids)
        running = [
            record_of(attempt, generation)
            for generation, attempt in self._running.items()
            if attempt.request_id in wanted
        ]
        return running + [self._ended[one] for one in wanted if one in self._ended]

    def close(self) -> None:
        """Returns when all is in the file."""
        if self._file is not None:
            self._file.close()

    def _remember(self, record: Record) -> None:
        self._ended[record.request_id] = record
        self._ended.move_to_end(record.request_id)
        if len(self._ended) > self._max_records:
            self._ended.popitem(last=False)


def record_of(attempt: Attempt, generation: Generation) -> Record:
    usage = generation.usage
    return Record(
        request_id=attempt.request_id,
        attempt=attempt.number,
        digest=generation.digest,
        outcome=generation.outcome,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
    )
