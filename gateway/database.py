"""The ORM from asyncio.

Raw ASGI gets none of Django's request signals, so connections are looked after here.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from django.db import close_old_connections, connection

from gateway.database_process import Ask

Result = TypeVar("Result")

CHECKPOINT_INTERVAL_S = 1.0

# Look-ups of keys and models; each thread keeps one connection (CONN_MAX_AGE).
_READERS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="orm")


async def in_thread(
    function: Callable[..., Result], *args: Any, pool: ThreadPoolExecutor | None = None
) -> Result:
    """function(*args) in a database thread, with stale connections closed before and after.

    For requests that come seldom: what every one of them asks goes by a DatabaseProcess.
    """
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(pool or _READERS, guarded, function, *args)


async def checkpoint_forever(read: Ask) -> None:
    """SQLite's log of changes is written back beside the requests, not by the one that fills it."""
    while True:
        await asyncio.sleep(CHECKPOINT_INTERVAL_S)
        if connection.vendor == "sqlite":
            await read(checkpoint)


def checkpoint() -> None:
    """PASSIVE: waits for nobody and lets nobody wait."""
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")


def guarded(function: Callable[..., Result], *args: Any) -> Result:
    close_old_connections()
    try:
        return function(*args)
    finally:
        close_old_connections()
