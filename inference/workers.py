"""Daemon threads that take jobs in order: one that does not come back keeps no process alive."""

import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]


class Workers:
    """Jobs must not raise. The threads start with the first job."""

    def __init__(self, name: str, num_threads: int) -> None:
        self._name = name
        self._num_threads = num_threads
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._is_started = False

    def put(self, job: Job) -> None:
        with self._starting:
            if not self._is_started:
                self._is_started = True
                for _ in range(self._num_threads):
                    self.start_one()
        self._jobs.put(job)

    def start_one(self) -> None:
        """One thread more."""
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def stop_one(self) -> None:
        """One thread less, when the jobs before are done."""
        self._jobs.put(None)

    def close(self) -> None:
        """All of them, once; put() must not follow."""
        with self._starting:
            if self._is_started:
                for _ in range(self._num_threads):
                    self.stop_one()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
