"""The ledger's writes of one web process, in the order they were made, many in one transaction.

SQLite takes one writer at a time and every commit costs a sync: a batch costs as much as one row. A
write that must not be lost (a settlement) is tried again until the database takes it; the others
(an opening, a heartbeat) fail to their callers. stop() returns when everything is written.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from django.db import DatabaseError, connections, transaction

from gateway import metrics
from gateway.database import in_thread
from tenants.metering import TokenCounts, touch_usage

log = logging.getLogger(__name__)

MAX_BATCH = 256
RETRY_INTERVAL_S = 1.0
HEARTBEAT_INTERVAL_S = 5.0


@dataclass(frozen=True)
class Write:
    """function: idempotent. done: resolved after its transaction has committed."""

    function: Callable[[], object]
    must_happen: bool
    done: asyncio.Future[None]


class UsageWriter:
    def __init__(self) -> None:
        self._queue: asyncio.Queue[Write | None] = asyncio.Queue()
        # One thread: the order of the queue is the order in the database.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="usage")
        self._watched: dict[str, Callable[[], TokenCounts | None]] = {}

    def submit(self, function: Callable[[], object], must_happen: bool) -> asyncio.Future[None]:
        """Queue a write; await the result for durability, or do not."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # A caller that left is no reason to report an unretrieved error.
        done.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._queue.put_nowait(Write(function, must_happen, done))
        metrics.WRITER_QUEUE.inc()
        return done

    def watch(self, request_id: str, counts: Callable[[], TokenCounts | None]) -> None:
        """Until unwatch(): the row's heartbeat, with what was counted so far, comes from here."""
        self._watched[request_id] = counts

    def unwatch(self, request_id: str) -> None:
        self._watched.pop(request_id, None)

    async def beat_forever(self) -> None:
        """Tell the ledger which of its open rows have a living process behind them."""
        while True:
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)
            if self._watched:
                self.submit(self._heartbeat(), must_happen=False)

    def _heartbeat(self) -> Callable[[], object]:
        found = {request_id: counts() for request_id, counts in self._watched.items()}
        known = {request_id: counts for request_id, counts in found.items() if counts is not None}
        return lambda: touch_usage(list(found), known)

    async def run(self) -> None:
        """Until stop(): then what was queued before it is written and run() returns.

        The thread's connection is closed with it.
        """
        try:
            await self._drain()
        finally:
            await in_thread(connections.close_all, self._thread)
            self._thread.shutdown()

    async def _drain(self) -> None:
        while (first := await self._queue.get()) is not None:
            batch, is_last = [first], False
            while len(batch) < MAX_BATCH and not self._queue.empty() and not is_last:
                write = self._queue.get_nowait()
                if write is None:
                    is_last = True
                else:
                    batch.append(write)
            await self._write(batch)
            if is_last:
                return

    def stop(self) -> None:
        self._queue.put_nowait(None)

    async def _write(self, batch: list[Write]) -> None:
        try:
            await in_thread(lambda: write_together(batch), self._thread)
        except Exception:
            # One bad write must not take its neighbours along: each alone, then, in the same order.
            metrics.WRITER_FAILURES.inc()
            log.warning("a batch of %d usage writes failed", len(batch), exc_info=True)
            for write in batch:
                await self._write_alone(write)
        else:
            for write in batch:
                finish(write, None)

    async def _write_alone(self, write: Write) -> None:
        while True:
            try:
                await in_thread(lambda: write_together([write]), self._thread)
            except DatabaseError as error:
                if not write.must_happen:
                    finish(write, error)
                    return
                log.error("a settlement waits for the database: %s", error)
                await asyncio.sleep(RETRY_INTERVAL_S)
            except Exception as error:
                log.exception("a usage write failed")
                finish(write, error)
                return
            else:
                finish(write, None)
                return


def write_together(batch: Sequence[Write]) -> None:
    with transaction.atomic():
        for write in batch:
            write.function()


def finish(write: Write, error: Exception | None) -> None:
    metrics.WRITER_QUEUE.dec()
    if write.done.done():
        return
    if error is None:
        write.done.set_result(None)
    else:
        write.done.set_exception(error)
