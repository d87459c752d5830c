"""The ORM from asyncio.

Raw ASGI gets none of Django's request signals, so connections are looked after here.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import close_old_connections, connection

Result = TypeVar("Result")

CHECKPOINT_INTERVAL_S = 1.0

# Look-ups of keys and models; each thread keeps one connection (CONN_MAX_AGE).
_READERS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="orm")


async def in_thread(
    function: Callable[[], Result], pool: ThreadPoolExecutor | None = None
) -> Result:
    """function() in a database thread, with stale connections closed before and after."""
    return await asyncio.get_running_loop().run_in_executor(pool or _READERS, guarded, function)


async def checkpoint_forever() -> None:
    """SQLite's log of changes is written back beside the requests, not by the one that fills it."""
    while True:
        await asyncio.sleep(CHECKPOINT_INTERVAL_S)
        if connection.vendor == "sqlite":
            await in_thread(checkpoint)


def checkpoint() -> None:
    """PASSIVE: waits for nobody and lets nobody wait."""
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")


def guarded(function: Callable[[], Result]) -> Result:
    close_old_connections()
    try:
        return function()
    finally:
        close_old_connections()
