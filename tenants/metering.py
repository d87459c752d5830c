"""The ledger: one row a client request, opened before its first byte, settled once.

Every function is synchronous, short, idempotent by request id, and may be called in a transaction
that holds many of them. Rule for money: what was delivered is charged, whatever ended the
request, and of what its client left, what was made until then. What failed before the client had
any of it is free, a stream before its first token, a plain answer before it was whole: its counts
are None, whatever replicas made and lost. Request ids are ours, never a
client's, so they may be looked up without naming the tenant.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.utils import timezone

from tenants.models import UsageStatus
from tenants.prices import FREE, PriceBook
from tenants.usage_rows import insert_rows, settle_rows, touch_rows

USAGE_RECORDED = "usage.recorded"


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
    prices: PriceBook = FREE
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
class UsageEnd:
    """How a request ended. counts None: nothing is known to have run."""

    start: UsageStart
    status: str
    counts: TokenCounts | None = None
    error_code: str = ""
    replica: str = ""

    def __post_init__(self) -> None:
        if self.status not in (UsageStatus.FINISHED, UsageStatus.CANCELLED, UsageStatus.FAILED):
            raise ValueError(f"expected finished, cancelled or failed, got {self.status!r}")


def open_usage(starts: Iterable[UsageStart]) -> None:
    """Insert open rows; one whose request id is there changes nothing."""
    now = timezone.now()
    insert_rows(
        {
            "request_id": start.request_id,
            "tenant": start.tenant_id,
            "api_key": start.key_id,
            "user": start.user_id,
            "endpoint": start.endpoint,
            "model": start.model,
            "adapter": start.adapter,
            "version": start.version,
            "digest": start.digest,
            "replica": start.replica,
            "price": start.prices.price_id,
            "started_at": start.started_at or now,
            "heartbeat_at": now,
        }
        for start in starts
    )


def touch_usage(found: Mapping[str, TokenCounts | None]) -> None:
    """A living process stands behind these open rows; their counts so far, where known."""
    rows = [
        {
            "request_id": request_id,
            "prompt_tokens": counts and counts.prompt,
            "cached_tokens": counts and counts.cached,
            "completion_tokens": counts and counts.completion,
        }
        for request_id, counts in found.items()
    ]
    touch_rows(rows, heartbeat_at=timezone.now())


def settle_usage(ends: Iterable[UsageEnd]) -> int:
    """Close rows: how many were closed for the first time.

    A row that the sweeper closed as orphaned is settled over: its process was slow, not dead.
    Nobody is told: that is the caller's, for many at once.
    """
    rows = [
        {
            "request_id": end.start.request_id,
            "tenant": end.start.tenant_id,
            "status": end.status,
            "prompt_tokens": end.counts and end.counts.prompt,
            "cached_tokens": end.counts and end.counts.cached,
            "completion_tokens": end.counts and end.counts.completion,
            "cost": cost_of(end.start.prices, end.status, end.counts),
            "error_code": end.error_code,
            "replica": end.replica or end.start.replica,
        }
        for end in ends
    ]
    return settle_rows(rows, ended_at=timezone.now())


def cost_of(prices: PriceBook, status: str, counts: TokenCounts | None) -> Decimal:
    if counts is None or (status == UsageStatus.FAILED and counts.completion == 0):
        return Decimal(0)
    return prices.cost(counts.prompt, counts.cached, counts.completion)
