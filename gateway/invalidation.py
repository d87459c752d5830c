"""What changed elsewhere, for the caches of this process: by the store's publish and subscribe, in
milliseconds; by the database's change log, for certain.
"""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from gateway import metrics
from gateway.database_process import Ask
from gateway.subscription import messages
from tenants.changes import Position, changes_since, forget_before
from tenants.events import INVALIDATE_CHANNEL

# A change that is pushed too is heard of by the push: what only the log tells is a push that was
# lost, and counted as one. A small part of CACHE_TTL_S.
HEAD_START_S = 0.2
# The log's rows live once to twice as long; tenants.changes.MAX_POSITION_AGE_S is less.
FORGET_INTERVAL_S = 1800.0

# Forgets one tenant's entries; None: everybody's.
Drop = Callable[[int | None], None]
# When a poll began, and whose rows it says have changed; None among them: everybody's.
Prove = Callable[[float, frozenset[int | None]], None]


@dataclass(frozen=True)
class Notice:
    """sent_at: when the change was committed, by the sender's clock; None: not said."""

    tenant_id: int | None
    sent_at: float | None


async def follow(drop: Drop) -> None:
    """Drop what notices name. Raises RedisError when the store is lost: then begin again."""
    try:
        async with aclosing(messages(INVALIDATE_CHANNEL)) as notices:
            async for raw in notices:
                if raw is None:
                    drop(None)
                    metrics.INVALIDATIONS_FOLLOWED.set(1)
                else:
                    _take(raw, drop)
    finally:
        metrics.INVALIDATIONS_FOLLOWED.set(0)


def _take(raw: bytes, drop: Drop) -> None:
    notice = read_notice(raw)
    drop(notice.tenant_id)
    if notice.sent_at is not None:
        # Two machines' clocks may differ by more than a notice takes.
        metrics.INVALIDATION_DELAY.observe(max(0.0, time.time() - notice.sent_at))


def read_notice(raw: bytes) -> Notice:
    """What is not understood names no tenant, which means all."""
    try:
        fields = json.loads(raw)
        tenant_id, sent_at = fields["tenant_id"], fields.get("sent_at")
    except (ValueError, KeyError, TypeError, AttributeError):
        return Notice(None, None)
    return Notice(
        tenant_id if isinstance(tenant_id, int) else None,
        sent_at if isinstance(sent_at, float) else None,
    )


async def poll(read: Ask, prove: Prove, period_s: float) -> None:
    """Prove by the change log what is kept. Raises DatabaseError when it cannot be read: then begin
    again, which is to doubt everything.
    """
    position: Position | None = None
    while True:
        began = time.monotonic()
        found = await read(changes_since, position)
        if found.tenant_ids:
            await asyncio.sleep(HEAD_START_S)
        prove(began, found.tenant_ids)
        position = found.position
        await asyncio.sleep(max(0.0, began + period_s - time.monotonic()))


async def forget_forever(read: Ask) -> None:
    """What was in the log before the last round, every process has read."""
    while True:
        found = await read(changes_since, None)
        await asyncio.sleep(FORGET_INTERVAL_S)
        await read(forget_before, found.position)
