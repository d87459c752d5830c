"""Answers of the database kept for at most CACHE_TTL_S, and dropped at once when a change is
pushed.

The push makes revocation fast; the lifetime, counted from before the question was asked, makes it
certain.
"""

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from django.db import DatabaseError

from gateway import metrics
from gateway.database_process import Ask
from gateway.openai.errors import unavailable
from tenants.errors import ApiError

Value = TypeVar("Value")

MAX_ENTRIES = 10_000
UNKNOWN = "Keys and models cannot be looked up now. Try again shortly."


class TenantCache(Generic[Value]):
    """(tenant-dependent key) → value. Errors are never kept: a new key or model works at once."""

    def __init__(
        self, name: str, ttl_s: float, tenant_of: Callable[[Any, Value], int], read: Ask
    ) -> None:
        self._ttl_s = ttl_s
        self._read = read
        self._tenant_of = tenant_of
        self._backstops = metrics.BACKSTOPS.labels(name)
        # Each with the moment at which it is too old.
        self._entries: dict[Hashable, tuple[float, Value]] = {}
        self._loading: dict[Hashable, tuple[float, asyncio.Task[Value]]] = {}
        # Bumped by every push: an answer asked for before a push is used by its askers, never kept.
        self._epoch = 0

    async def get(self, key: Hashable, load: Callable[..., Value], *args: Any) -> Value:
        """The kept value, or what the database says to load(*args); callers of one key at the same
        time share one load.
        """
        now = time.monotonic()
        found = self._entries.get(key)
        if found is not None and found[0] > now:
            # Asked anew in time, so that nobody waits for what is asked for all the time.
            if found[0] - now < self._ttl_s / 4 and key not in self._loading:
                self._begin(key, now + self._ttl_s, load, *args)
            return found[1]
        loading = self._loading.get(key)
        # A load that takes longer than a lifetime may have asked before the last change.
        if loading is None or loading[0] <= now:
            loading = self._begin(key, now + self._ttl_s, load, *args)
        return await asyncio.shield(loading[1])

    def _begin(
        self, key: Hashable, expires_at: float, load: Callable[..., Value], *args: Any
    ) -> tuple[float, asyncio.Task[Value]]:
        task = asyncio.create_task(self._load(key, expires_at, load, *args))
        # Its askers may all be gone when it fails: not an unretrieved error then.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._loading[key] = loading = (expires_at, task)
        return loading

    async def _load(
        self, key: Hashable, expires_at: float, load: Callable[..., Value], *args: Any
    ) -> Value:
        epoch, former = self._epoch, self._entries.get(key)
        value: Value | None = None
        try:
            value = await self._read(load, *args)
        except DatabaseError as error:
            raise unavailable("database_unavailable", UNKNOWN) from error
        except ApiError:
            # Kept until now, and no longer there.
            self._note_change(epoch, former, None)
            self._entries.pop(key, None)
            raise
        finally:
            if key in self._loading and self._loading[key][0] == expires_at:
                del self._loading[key]
        self._note_change(epoch, former, value)
        if epoch == self._epoch and expires_at > time.monotonic():
            self._make_room()
            self._entries[key] = (expires_at, value)
        return value

    def _note_change(
        self, epoch: int, former: tuple[float, Value] | None, value: Value | None
    ) -> None:
        if former is not None and former[1] != value and epoch == self._epoch:
            self._backstops.inc()

    def _make_room(self) -> None:
        if len(self._entries) < MAX_ENTRIES:
            return
        now = time.monotonic()
        self._entries = {key: entry for key, entry in self._entries.items() if entry[0] > now}
        if len(self._entries) >= MAX_ENTRIES:
            self._entries.clear()

    def drop(self, tenant_id: int | None) -> None:
        """Forget one tenant's entries; None: everybody's (messages may have been lost)."""
        self._epoch += 1
        self._loading.clear()
        self._entries = {
            key: entry
            for key, entry in self._entries.items()
            if tenant_id is not None and self._tenant_of(key, entry[1]) != tenant_id
        }
