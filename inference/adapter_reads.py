"""Brings adapters from disk to the host's pages, and compiles those that came from PEFT's files.

Files are read by threads of its own. What is shared is guarded by the engine's lock, never held
while a file is read or written.
"""

import logging
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition

import torch

from inference.adapter import Adapter
from inference.adapter_loader import AdapterLoader, Origin, Source
from inference.adapter_pool import AdapterPool
from inference.errors import EngineError, ErrorCode
from inference.host_pages import HostPages
from inference.page_file import Contents
from inference.stats import LoadTimes

logger = logging.getLogger(__name__)

# Each has the loader's threads to share its pieces among; two keep a disk busy.
NUM_READERS = 2
# Fetches at work or at hand: each has taken room for its adapter.
MAX_FETCHES = 2 * NUM_READERS
# Compiled files still to be written, whose pages must stay; further ones are written by the reader.
MAX_UNWRITTEN = 2
# Readers run Python too, for headers and plans: the engine's loop would wait 5 ms, the default, for
# its turn among threads.
SWITCH_INTERVAL_S = 0.0005


class AdapterReads:
    """lock: the engine's, notified when an adapter has arrived. Methods are called under it."""

    def __init__(
        self,
        pool: AdapterPool,
        loader: AdapterLoader,
        host: HostPages,
        times: LoadTimes,
        lock: Condition,
    ) -> None:
        self._pool, self._loader, self._host = pool, loader, host
        self._times, self._lock = times, lock
        # Beside the pages, of every adapter in the pool that was read once.
        self.contents: dict[str, Contents] = {}
        self.errors: dict[str, EngineError] = {}
        self._num_fetches = 0
        self._num_unwritten = 0
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        self._readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="adapter-reader")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="adapter-writer")

    def start_first(self, digest: str, path: str) -> "Future[Adapter]":
        """Of an adapter that the pool does not know; expected there when the result has come."""
        return self._readers.submit(self._read_first, digest, path)

    def start_fetch(self, adapter: Adapter) -> bool:
        """Of one that the pool knows; nothing if it is there, or no reader is free. False when the
        host has no room for it.
        """
        if adapter.on_host or adapter.is_reading or self._num_fetches >= MAX_FETCHES:
            return True
        if not self._pool.start_read(adapter):
            return False
        self._num_fetches += 1
        self.errors.pop(adapter.digest, None)
        self._readers.submit(self._fetch, adapter, self._host.spans(adapter.host_pages))
        return True

    def drop(self, adapter: Adapter | None) -> None:
        """Forgets what is known of an adapter that left the pool."""
        if adapter is not None:
            self.contents.pop(adapter.digest, None)
            self.errors.pop(adapter.digest, None)

    def close(self) -> None:
        """Without the lock. Reads at work come to their end, others do not begin."""
        for threads in (self._readers, self._writer):
            threads.shutdown(wait=True, cancel_futures=True)
        self._loader.close()

    def _read_first(self, digest: str, path: str) -> Adapter:
        """Where the host has no room it is only verified, and compiled: it stays on disk."""
        source = self._loader.open(path, digest)
        sizes = source.rank, source.num_pages, self._host.page_bytes * source.num_pages
        adapter = Adapter(digest, path, *sizes, source.invocation)
        with self._lock:
            has_room = self._pool.expect(adapter)
            spans = self._host.spans(adapter.host_pages)
        self._read(adapter, spans if has_room else self._host.spare(adapter.num_pages), source)
        return adapter

    def _fetch(self, adapter: Adapter, spans: Sequence[torch.Tensor]) -> None:
        error = None
        try:
            self._read(adapter, spans)
        except EngineError as refusal:
            error = refusal
        except Exception:
            logger.exception("adapter %s cannot be read", adapter.digest)
            error = EngineError(ErrorCode.INTERNAL, "the adapter cannot be read")
        with self._lock:
            self._num_fetches -= 1
            # For those that wait for it; who comes later tries again.
            if error is not None and (adapter.num_claims or adapter.pinned):
                self.errors[adapter.digest] = error
            self._lock.notify_all()

    def _read(
        self, adapter: Adapter, spans: Sequence[torch.Tensor], source: Source | None = None
    ) -> None:
        """Fills the spans and tells the pool; spans: its reserved pages, or memory beside them."""
        started = time.perf_counter()
        arrived: tuple[Contents, Origin] | None = None
        try:
            source = source or self._loader.open(adapter.path, adapter.digest)
            arrived = self._loader.fill(source, spans)
        finally:
            if arrived is None:
                with self._lock:
                    self._end_read(adapter, arrived=False, must_keep=False)
            else:
                self._take_in(adapter, spans, *arrived, time.perf_counter() - started)

    def _take_in(
        self,
        adapter: Adapter,
        spans: Sequence[torch.Tensor],
        contents: Contents,
        origin: Origin,
        seconds: float,
    ) -> None:
        must_keep = origin == "disk" and self._loader.folder is not None
        with self._lock:
            self._times.count(origin, "host", seconds)
            self.contents[adapter.digest] = contents
            adapter.is_compiled = origin == "compiled"
            is_late = self._num_unwritten >= MAX_UNWRITTEN
            self._num_unwritten += must_keep
            holds = self._end_read(adapter, True, must_keep)
        if must_keep and is_late:
            self._keep(adapter, contents, spans, holds)
        elif must_keep:
            self._writer.submit(self._keep, adapter, contents, spans, holds)

    def _end_read(self, adapter: Adapter, arrived: bool, must_keep: bool) -> bool:
        """Whether the pages that were read to are held, to be compiled."""
        holds = adapter.is_reading and must_keep
        if holds:
            self._pool.use_host(adapter)
        if adapter.is_reading:
            self.drop(self._pool.end_read(adapter, arrived))
        self._lock.notify_all()
        return holds

    def _keep(
        self, adapter: Adapter, contents: Contents, spans: Sequence[torch.Tensor], holds: bool
    ) -> None:
        is_kept = False
        try:
            is_kept = self._loader.keep(adapter.digest, contents, spans)
        except Exception:
            logger.exception("adapter %s cannot be compiled", adapter.digest)
        with self._lock:
            self._num_unwritten -= 1
            adapter.is_compiled |= is_kept
            if holds:
                self.drop(self._pool.done_with_host(adapter))
