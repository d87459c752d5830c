"""Answers of the database, kept while they are proven: dropped at once when a change is pushed, and
served only as long as a poll of the change log that began less than CACHE_TTL_S ago named nobody of
theirs.

Why nothing stale outlives CACHE_TTL_S. Take a change that is committed at c, and an answer whose
question began at q and saw the rows from before it: q < c. The answer is served until CACHE_TTL_S
after q, or after the begin of a poll. Polls come one after the other, and the first one to begin
after c names the change, if none before did. Any poll that began before c proves nothing for longer
than c + CACHE_TTL_S, nor does q. When a poll's answer, which names the change, is taken in, the
kept answer is doubted, whatever it is proven by. If it is not yet there, because its question is
still out, it is not kept when it comes: the epoch has changed. And what is asked after that begins
after c. A poll that begins anew, after one failed, names everybody.
"""

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Any, Generic, TypeVar

from django.db import DatabaseError
from django.utils import timezone

from gateway import metrics
from gateway.database_process import Ask
from gateway.openai.errors import unavailable
from tenants.errors import ApiError

Value = TypeVar("Value")

MAX_ENTRIES = 10_000
# Of one cache at once. More would answer nobody sooner, but keep a poll waiting behind them: then
# nothing is proven, and more is asked.
MAX_LOADS = 3
# What is in use is asked for anew so often, beside those who are served: a key's look-up notes that
# it is used, a minute apart at least. And no fault in the log lasts longer.
RENEW_S = 70.0
UNKNOWN = "Keys and models cannot be looked up now. Try again shortly."


@dataclass(slots=True)
class Entry(Generic[Value]):
    """asked_at: before its question, by the monotonic clock. is_doubted: a poll named its tenant
    since then; kept until it is asked for again, to tell whether it had changed.
    """

    value: Value
    asked_at: float
    is_doubted: bool = False


@dataclass(slots=True, eq=False)
class Loading(Generic[Value]):
    """asked_at: before its question; inf while it waits for its turn."""

    task: asyncio.Task[Value] = field(init=False)
    asked_at: float = inf


class TenantCache(Generic[Value]):
    """(tenant-dependent key) → value. Errors are never kept: a new key or model works at once.

    until_of: the moment at which a value ends by itself, None for never.
    """

    def __init__(
        self,
        name: str,
        ttl_s: float,
        tenant_of: Callable[[Any, Value], int],
        read: Ask,
        until_of: Callable[[Value], datetime | None] = lambda _: None,
    ) -> None:
        self._ttl_s = ttl_s
        self._read = read
        self._tenant_of = tenant_of
        self._until_of = until_of
        self._backstops = metrics.BACKSTOPS.labels(name)
        self._entries: dict[Hashable, Entry[Value]] = {}
        self._loading: dict[Hashable, Loading[Value]] = {}
        self._turns = asyncio.Semaphore(MAX_LOADS)
        # When the last poll began that told of all changes until then.
        self._proven_at = -inf
        # Bumped whenever a change is told: an answer asked for before is its askers', never kept.
        self._epoch = 0

    async def get(self, key: Hashable, load: Callable[..., Value], *args: Any) -> Value:
        """The kept value, or what the database says to load(*args); callers of one key at the same
        time share one load.
        """
        now = time.monotonic()
        entry, loading = self._entries.get(key), self._loading.get(key)
        if entry is not None and self._holds(entry, now):
            if loading is None and entry.asked_at + RENEW_S < now:
                self._begin(key, load, *args)
            return entry.value
        # A load that takes longer than a lifetime may have asked before the last change.
        if loading is not None and loading.asked_at + self._ttl_s > now:
            value = await asyncio.shield(loading.task)
            if not self._has_ended(value):
                return value
        return await asyncio.shield(self._begin(key, load, *args).task)

    def _holds(self, entry: Entry[Value], now: float) -> bool:
        if entry.is_doubted or self._has_ended(entry.value):
            return False
        return max(entry.asked_at, self._proven_at) + self._ttl_s > now

    def _has_ended(self, value: Value) -> bool:
        until = self._until_of(value)
        return until is not None and until <= timezone.now()

    def _begin(self, key: Hashable, load: Callable[..., Value], *args: Any) -> Loading[Value]:
        self._loading[key] = loading = Loading[Value]()
        loading.task = asyncio.create_task(self._load(key, loading, load, *args))
        # Its askers may all be gone when it fails: not an unretrieved error then.
        loading.task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return loading

    async def _load(
        self, key: Hashable, loading: Loading[Value], load: Callable[..., Value], *args: Any
    ) -> Value:
        try:
            async with self._turns:
                loading.asked_at, epoch = time.monotonic(), self._epoch
                value = await self._read(load, *args)
        except DatabaseError as error:
            raise unavailable("database_unavailable", UNKNOWN) from error
        except ApiError:
            # Kept until now, and no longer there.
            self._note_change(self._entries.pop(key, None), None)
            raise
        finally:
            if self._loading.get(key) is loading:
                del self._loading[key]
        if epoch == self._epoch:
            self._note_change(self._entries.pop(key, None), value)
            self._keep(key, Entry(value, loading.asked_at))
        return value

    def _note_change(self, former: Entry[Value] | None, value: Value | None) -> None:
        """A push would have dropped what was kept."""
        if former is not None and former.value != value and not self._has_ended(former.value):
            self._backstops.inc()

    def _keep(self, key: Hashable, entry: Entry[Value]) -> None:
        """In place of what was asked for longest ago, where there is no room."""
        while len(self._entries) >= MAX_ENTRIES:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = entry

    def drop(self, tenant_id: int | None) -> None:
        """A push: forget one tenant's entries; None: everybody's (messages may have been lost)."""
        self._forget_loads()
        self._entries = {
            key: entry
            for key, entry in self._entries.items()
            if tenant_id is not None and self._tenant_of(key, entry.value) != tenant_id
        }

    def prove(self, began: float, tenant_ids: frozenset[int | None]) -> None:
        """A poll that began then, by the monotonic clock, says whose rows have changed since the
        one before; None among them: everybody's.
        """
        self._proven_at = began
        if not tenant_ids:
            return
        self._forget_loads()
        for key, entry in self._entries.items():
            if None in tenant_ids or self._tenant_of(key, entry.value) in tenant_ids:
                entry.is_doubted = True

    def _forget_loads(self) -> None:
        """But for those that have not asked yet."""
        self._epoch += 1
        self._loading = {key: one for key, one in self._loading.items() if one.asked_at == inf}
