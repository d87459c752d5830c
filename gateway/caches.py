"""Answers of the database kept for at most CACHE_TTL_S, and dropped at once when a change is
pushed.

The push makes revocation fast; the lifetime, counted from before the question was asked, makes it
certain.
"""

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from gateway.database import in_thread

Value = TypeVar("Value")

MAX_ENTRIES = 10_000


class TenantCache(Generic[Value]):
    """(tenant-dependent key) → value. Errors are never kept: a new key or model works at once."""

    def __init__(self, ttl_s: float, tenant_of: Callable[[Any, Value], int]) -> None:
        self._ttl_s = ttl_s
        self._tenant_of = tenant_of
        self._entries: dict[Hashable, tuple[float, Value]] = {}
        self._loading: dict[Hashable, asyncio.Task[Value]] = {}
        # Bumped by every push: an answer asked for before a push is used by its askers, never kept.
        self._epoch = 0

    async def get(self, key: Hashable, load: Callable[[], Value]) -> Value:
        """The kept value, or load() in a thread; callers of one key at the same time share one
        load.
        """
        found = self._entries.get(key)
        if found is not None and found[0] > time.monotonic():
            return found[1]
        task = self._loading.get(key)
        if task is None:
            task = asyncio.create_task(self._load(key, load))
            # Its askers may all be gone when it fails: not an unretrieved error then.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._loading[key] = task
        return await asyncio.shield(task)

    async def _load(self, key: Hashable, load: Callable[[], Value]) -> Value:
        epoch, expires_at = self._epoch, time.monotonic() + self._ttl_s
        try:
            value = await in_thread(load)
        finally:
            self._loading.pop(key, None)
        if epoch == self._epoch:
            self._make_room()
            self._entries[key] = (expires_at, value)
        return value

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
