"""The ledger's writes of one web process: openings and settlements, many in one statement.

SQLite takes one writer at a time and every commit costs a sync: many rows cost as much as one.
An opening is written at once, for its client waits for it; nobody waits for a settlement, so those
of some milliseconds are written together. A settlement is tried again until the database
takes it; an opening fails to its caller. stop() returns when everything is written.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from django.db import DatabaseError, DataError, IntegrityError

from gateway import metrics
from gateway.database_process import Ask
from tenants.events import show
from tenants.metering import (
    USAGE_RECORDED,
    TokenCounts,
    UsageEnd,
    UsageStart,
    open_usage,
    settle_usage,
    touch_usage,
)

log = logging.getLogger(__name__)

SETTLE_DELAY_S = 0.02
RETRY_INTERVAL_S = 1.0
HEARTBEAT_INTERVAL_S = 5.0
TELL_INTERVAL_S = 1.0

Counts = Callable[[], TokenCounts | None]


@dataclass(frozen=True)
class Opening:
    """done: resolved once its row is committed."""

    start: UsageStart
    done: asyncio.Future[None]


@dataclass(frozen=True)
class Batch:
    """touched: the open rows of this process, with what was counted so far, where known."""

    openings: list[Opening] = field(default_factory=list)
    ends: list[UsageEnd] = field(default_factory=list)
    touched: dict[str, TokenCounts | None] = field(default_factory=dict)

    def asked(self) -> tuple[list[UsageStart], dict[str, TokenCounts | None], list[UsageEnd]]:
        """Of write_together."""
        return [opening.start for opening in self.openings], self.touched, self.ends


class UsageWriter:
    def __init__(self, write: Ask) -> None:
        self._openings: list[Opening] = []
        self._ends: list[UsageEnd] = []
        self._touched: dict[str, TokenCounts | None] = {}
        self._watched: dict[str, Counts] = {}
        # Whose usage has grown, and under which adapter's name.
        self._grown: set[tuple[int, str]] = set()
        self._due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._is_settling_due = False
        self._is_stopping = False
        self._ask = write

    def open(self, start: UsageStart, counts: Counts) -> asyncio.Future[None]:
        """Queue the opening; await the result for durability.

        Until settle() the row's heartbeat comes from here, with what counts() says.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # A caller that left is no reason to report an unretrieved error.
        done.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._openings.append(Opening(start, done))
        self._watched[start.request_id] = counts
        metrics.WRITER_QUEUE.inc()
        self._due.set()
        return done

    def settle(self, end: UsageEnd) -> None:
        """Queue the settlement of what was opened here."""
        self._watched.pop(end.start.request_id, None)
        self._ends.append(end)
        metrics.WRITER_QUEUE.inc()
        self._settle_in(SETTLE_DELAY_S)

    def stop(self) -> None:
        self._is_stopping = True
        self._due.set()

    async def beat_forever(self) -> None:
        """Tell the ledger which of its open rows have a living process behind them."""
        while True:
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)
            self._touched = {name: counts() for name, counts in self._watched.items()}
            self._settle_now()

    async def tell_forever(self) -> None:
        """Tell the pages of a tenant that its usage has grown: once in a while, not each time."""
        while True:
            await asyncio.sleep(TELL_INTERVAL_S)
            while self._grown:
                tenant_id, adapter = self._grown.pop()
                await show(tenant_id, USAGE_RECORDED, {"adapter": adapter})

    async def run(self) -> None:
        """Until stop(): then what was queued before it is written and run() returns."""
        while not self._is_stopping or self._openings or self._ends:
            await self._due.wait()
            self._due.clear()
            await self._write(self._take())

    def _take(self) -> Batch:
        """Openings, and what else is due. A settlement never goes before its opening."""
        openings, self._openings = self._openings, []
        if not self._is_settling_due and not self._is_stopping:
            return Batch(openings)
        self._is_settling_due = False
        batch = Batch(openings, self._ends, self._touched)
        self._ends, self._touched = [], {}
        return batch

    def _settle_in(self, delay_s: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._settle_now)

    def _settle_now(self) -> None:
        self._timer = None
        self._is_settling_due = True
        self._due.set()

    async def _write(self, batch: Batch) -> None:
        try:
            await self._ask(write_together, *batch.asked())
        except Exception:
            # One bad write must not take its neighbours along: each alone, then.
            metrics.WRITER_FAILURES.inc()
            log.warning("a batch of usage writes failed", exc_info=True)
            await self._write_each(batch)
        else:
            for opening in batch.openings:
                finish(opening, None)
            for end in batch.ends:
                self._settled(end)

    async def _write_each(self, batch: Batch) -> None:
        for opening in batch.openings:
            finish(opening, await self._failure(Batch([opening])))
        for number, end in enumerate(batch.ends):
            error = await self._failure(Batch(ends=[end]))
            if may_pass(error):
                log.error("settlements wait for the database: %s", error)
                self._ends[:0] = batch.ends[number:]
                self._settle_in(RETRY_INTERVAL_S)
                return
            if error is not None:
                # Its row stays open until the sweeper closes it with what was last reported.
                log.error("%s cannot be settled", end.start.request_id, exc_info=error)
            self._settled(end)

    async def _failure(self, batch: Batch) -> Exception | None:
        try:
            await self._ask(write_together, *batch.asked())
        except Exception as error:  # noqa: BLE001 It is the caller's to sort.
            return error
        return None

    def _settled(self, end: UsageEnd) -> None:
        metrics.WRITER_QUEUE.dec()
        self._grown.add((end.start.tenant_id, end.start.adapter))


def may_pass(error: Exception | None) -> bool:
    """Whether the same write can succeed later: not what no row can hold."""
    return isinstance(error, DatabaseError) and not isinstance(error, DataError | IntegrityError)


def write_together(
    starts: list[UsageStart], touched: dict[str, TokenCounts | None], ends: list[UsageEnd]
) -> None:
    """Each of them is one statement, or may be done in part: all are idempotent."""
    if starts:
        open_usage(starts)
    if touched:
        touch_usage(touched)
    if ends:
        settle_usage(ends)


def finish(opening: Opening, error: Exception | None) -> None:
    metrics.WRITER_QUEUE.dec()
    if opening.done.done():
        return
    if error is None:
        opening.done.set_result(None)
    else:
        opening.done.set_exception(error)
