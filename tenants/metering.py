"""The ledger: one row a client request, opened before its first byte, settled once.

Every function is synchronous, short, idempotent by request id, and may be called in a transaction
that holds many of them. Rule for money: what was delivered is charged, whatever ended the
request; a request that failed before its first token is free. Request ids are ours, never a
client's, so they may be looked up without naming the tenant.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from django.db import transaction
from django.db.models import Q, Sum
from django.utils import timezone

from tenants.billing.periods import Period
from tenants.events import publish
from tenants.models import UsageRecord, UsageStatus
from tenants.money import to_nanos
from tenants.prices import FREE, book_of
from tenants.scope import tenant_scope, unscoped

# A row whose process has not touched it for this long is an orphan. The gateway touches every 5 s.
ORPHAN_AFTER = timedelta(seconds=60)
ORPHANED = "orphaned"
# Settlements in the counter store lag the ledger, or run ahead of it, by far less than this.
MAX_LAG = timedelta(minutes=2)


@dataclass(frozen=True)
class UsageStart:
    """What is known when a request is admitted. adapter "" and digest "" are the base model."""

    request_id: str
    tenant_id: int
    endpoint: str
    model: str
    key_id: int | None = None
    user_id: int | None = None
    adapter: str = ""
    version: int | None = None
    digest: str = ""
    replica: str = ""
    price_id: int | None = None
    started_at: datetime | None = None


@dataclass(frozen=True)
class TokenCounts:
    """cached is a part of prompt."""

    prompt: int
    cached: int
    completion: int

    def __post_init__(self) -> None:
        FREE.cost(self.prompt, self.cached, self.completion)


@dataclass(frozen=True)
class MonthLedger:
    """spent_nanos.

    Closed rows of the month. recent_ids: those of them that closed within MAX_LAG.
    """

    spent_nanos: int
    recent_ids: tuple[str, ...]


def open_usage(start: UsageStart) -> None:
    """Insert the open row; a second call with the same request id changes nothing."""
    started_at = start.started_at or timezone.now()
    row = UsageRecord(
        request_id=start.request_id,
        tenant_id=start.tenant_id,
        api_key_id=start.key_id,
        user_id=start.user_id,
        endpoint=start.endpoint,
        model=start.model,
        adapter=start.adapter,
        version=start.version,
        digest=start.digest,
        replica=start.replica,
        price_id=start.price_id,
        started_at=started_at,
        heartbeat_at=timezone.now(),
    )
    with tenant_scope(start.tenant_id):
        UsageRecord.objects.bulk_create([row], ignore_conflicts=True)


def touch_usage(
    request_ids: Iterable[str], tokens: Mapping[str, TokenCounts] | None = None
) -> None:
    """A living process stands behind these open rows.

    `tokens` are their counts so far, where known.
    """
    now = timezone.now()
    with unscoped():
        rows = UsageRecord.objects.filter(status=UsageStatus.OPEN)
        rows.filter(request_id__in=list(request_ids)).update(heartbeat_at=now)
        for request_id, counts in (tokens or {}).items():
            rows.filter(request_id=request_id).update(
                prompt_tokens=counts.prompt,
                cached_tokens=counts.cached,
                completion_tokens=counts.completion,
            )


def settle_usage(
    request_id: str,
    status: str,
    prompt_tokens: int | None,
    cached_tokens: int | None,
    completion_tokens: int | None,
    error_code: str = "",
    replica: str = "",
) -> bool:
    """Close the row: True the first time. None for all three counts: nothing is known to have run.

    A row that the sweeper closed as orphaned is settled over: its process was slow, not dead.
    Raises ValueError for counts that cannot be, and for a status that ends nothing.
    """
    if status not in (UsageStatus.FINISHED, UsageStatus.CANCELLED, UsageStatus.FAILED):
        raise ValueError(f"expected finished, cancelled or failed, got {status!r}")
    counts = (prompt_tokens, cached_tokens, completion_tokens)
    known = None if None in counts else TokenCounts(*(count or 0 for count in counts))
    with unscoped():
        row = UsageRecord.objects.select_related("price").filter(request_id=request_id).first()
        return row is not None and close(row, status, known, error_code, replica)


def close(
    row: UsageRecord, status: str, counts: TokenCounts | None, error_code: str, replica: str = ""
) -> bool:
    unsettled = Q(status=UsageStatus.OPEN) | Q(status=UsageStatus.FAILED, error_code=ORPHANED)
    num_closed = UsageRecord.objects.filter(unsettled, id=row.id).update(
        status=status,
        prompt_tokens=counts and counts.prompt,
        cached_tokens=counts and counts.cached,
        completion_tokens=counts and counts.completion,
        cost=cost_of(row, status, counts),
        error_code=error_code,
        replica=replica or row.replica,
        ended_at=timezone.now(),
    )
    if num_closed:
        publish(row.tenant_id, "usage.recorded", {"adapter": row.adapter})
    return num_closed == 1


def cost_of(row: UsageRecord, status: str, counts: TokenCounts | None) -> Decimal:
    if counts is None or (status == UsageStatus.FAILED and counts.completion == 0):
        return Decimal(0)
    book = FREE if row.price is None else book_of(row.price)
    return book.cost(counts.prompt, counts.cached, counts.completion)


def settle_orphans(now: datetime | None = None) -> list[UsageRecord]:
    """Close as failed what nobody touches any more, with the tokens last reported."""
    dead_since = (now or timezone.now()) - ORPHAN_AFTER
    closed = []
    with unscoped():
        rows = UsageRecord.objects.select_related("price").filter(
            status=UsageStatus.OPEN, heartbeat_at__lt=dead_since
        )
        for row in rows.order_by("heartbeat_at")[:1000]:
            if close(row, UsageStatus.FAILED, counts_of(row), ORPHANED):
                closed.append(row)
    return closed


def counts_of(row: UsageRecord) -> TokenCounts | None:
    if row.prompt_tokens is None or row.cached_tokens is None or row.completion_tokens is None:
        return None
    return TokenCounts(row.prompt_tokens, row.cached_tokens, row.completion_tokens)


def ledger_of_month(tenant_id: int, month: str) -> MonthLedger:
    """What the counter store is rebuilt from. A request belongs to the month of its admission."""
    period = Period.of_month(month)
    with tenant_scope(tenant_id), transaction.atomic():
        closed = UsageRecord.objects.filter(
            started_at__gte=period.start, started_at__lt=period.end
        ).exclude(status=UsageStatus.OPEN)
        recent = closed.filter(ended_at__gte=timezone.now() - MAX_LAG)
        # Ids first: a row that closes in between is then counted once more, never once less.
        ids = tuple(recent.values_list("request_id", flat=True))
        spent = closed.aggregate(spent=Sum("cost"))["spent"]
    return MonthLedger(to_nanos(spent or Decimal(0)), ids)
