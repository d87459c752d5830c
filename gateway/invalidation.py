"""What changed elsewhere, by the store's publish and subscribe, for the caches of this process."""

import json
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from gateway import metrics
from gateway.subscription import messages
from tenants.events import INVALIDATE_CHANNEL

# Forgets one tenant's entries; None: everybody's.
Drop = Callable[[int | None], None]


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
