"""What dead processes left open in the ledger: closed with what the replicas made, its holds freed.

Rule: of the attempts at a request the latest that a replica knows counts, if it used the adapter
version that the row names. No less is charged than the dead process had reported, as that was
delivered; an attempt without a token changes nothing, so a request that had none stays free. What
a replica still makes is not over: its row stays open, and is asked for again. Where no replica
knows of a request (it was killed too, or is another engine), what was last reported stands.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from asgiref.sync import async_to_sync
from django.utils import timezone

from tenants.billing.periods import day_of
from tenants.events import publish
from tenants.metering import USAGE_RECORDED, TokenCounts, cost_of, touch_usage
from tenants.models import UsageRecord, UsageStatus
from tenants.prices import FREE, book_of
from tenants.quota import Quota
from tenants.scope import unscoped
from tenants.usage_rows import ORPHANED

# A row whose process has not touched it for this long is an orphan. The gateway touches every 5 s.
ORPHAN_AFTER = timedelta(seconds=60)
# At once: as many as a replica may be asked for.
MAX_ROWS = 1000


@dataclass(frozen=True)
class Attempt:
    """What a replica knows of a request. number: 1, or more where replicas were lost before this
    one. digest "": the base. counts: so far, if it is running.
    """

    request_id: str
    number: int
    replica: str
    digest: str
    is_running: bool
    counts: TokenCounts


# What all replicas know of requests, by their ids.
Ask = Callable[[Sequence[str]], Iterable[Attempt]]


def settle_orphans(ask: Ask, now: datetime | None = None) -> list[UsageRecord]:
    """Close as failed what nobody touches any more, and free what it held; the rows."""
    rows = close_orphans(ask, now or timezone.now())
    if rows:
        async_to_sync(free_holds)(rows)
    return rows


def close_orphans(ask: Ask, now: datetime) -> list[UsageRecord]:
    with unscoped():
        rows = list(
            UsageRecord.objects.select_related("price", "api_key")
            .filter(status=UsageStatus.OPEN, heartbeat_at__lt=now - ORPHAN_AFTER)
            .order_by("heartbeat_at")[:MAX_ROWS]
        )
        latest = latest_attempts(ask([row.request_id for row in rows]) if rows else ())
        closed, running = [], {}
        for row in rows:
            attempt = latest.get((row.request_id, row.digest))
            if attempt is not None:
                take_in(row, attempt)
            if attempt is not None and attempt.is_running:
                running[row.request_id] = counts_of(row)
            elif close(row):
                closed.append(row)
        touch_usage(running)
    return closed


def latest_attempts(attempts: Iterable[Attempt]) -> dict[tuple[str, str], Attempt]:
    """By request and digest: what another version made is nobody's to pay."""
    ordered = sorted(attempts, key=lambda one: one.number)
    return {(one.request_id, one.digest): one for one in ordered}


def take_in(row: UsageRecord, attempt: Attempt) -> None:
    """The attempt's counts, unless it made nothing or more was reported. The row is not saved."""
    if attempt.counts.completion < max(1, row.completion_tokens or 0):
        return
    row.prompt_tokens = attempt.counts.prompt
    row.cached_tokens = attempt.counts.cached
    row.completion_tokens = attempt.counts.completion
    row.replica = attempt.replica


def close(row: UsageRecord) -> bool:
    """False: it was closed meanwhile, or touched by a process that was slow, not dead."""
    prices = FREE if row.price is None else book_of(row.price)
    is_untouched = UsageRecord.objects.filter(
        status=UsageStatus.OPEN, id=row.id, heartbeat_at=row.heartbeat_at
    )
    num_closed = is_untouched.update(
        status=UsageStatus.FAILED,
        error_code=ORPHANED,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        completion_tokens=row.completion_tokens,
        replica=row.replica,
        cost=cost_of(prices, UsageStatus.FAILED, counts_of(row)),
        ended_at=timezone.now(),
    )
    if num_closed:
        publish(row.tenant_id, USAGE_RECORDED, {"adapter": row.adapter})
    return num_closed == 1


def counts_of(row: UsageRecord) -> TokenCounts | None:
    if row.prompt_tokens is None or row.cached_tokens is None or row.completion_tokens is None:
        return None
    return TokenCounts(row.prompt_tokens, row.cached_tokens, row.completion_tokens)


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
