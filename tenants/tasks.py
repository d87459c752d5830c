"""Periodic work of this room. Celery only carries the call: the rows say what is to do."""

from asgiref.sync import async_to_sync
from celery import shared_task

from tenants.billing.periods import day_of
from tenants.metering import settle_orphans as close_orphans
from tenants.models import UsageRecord
from tenants.quota import Quota


@shared_task(name="tenants.tasks.settle_orphans")
def settle_orphans() -> int:
    """Close usage rows whose process died, and free what it held; the number of rows."""
    rows = close_orphans()
    if rows:
        async_to_sync(free_holds)(rows)
    return len(rows)


async def free_holds(rows: list[UsageRecord]) -> None:
    quota = Quota()
    try:
        for row in rows:
            num_tokens = (row.prompt_tokens or 0) + (row.completion_tokens or 0)
            day = day_of(row.started_at)
            key = row.api_key
            family_id = None if key is None else key.family_id or key.id
            await quota.abandon(row.tenant_id, family_id, row.request_id, day, num_tokens)
    finally:
        await quota.close()
