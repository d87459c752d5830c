"""What the counters of a day or month are counted from, where the store has none: the ledger."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from django.db import connection, transaction
from django.db.models import F, Q, Sum
from django.utils import timezone

from tenants.billing.periods import Period
from tenants.models import UsageRecord, UsageStatus
from tenants.money import to_nanos
from tenants.scope import tenant_scope

# Settlements in the counter store lag the ledger, or run ahead of it, by far less than this.
MAX_LAG = timedelta(minutes=2)


@dataclass(frozen=True)
class PeriodLedger:
    """Sums over the closed rows of a period.

    recent_ids: those of them that closed within MAX_LAG.
    """

    num_tokens: int
    spent_nanos: int
    recent_ids: tuple[str, ...]


async def read_ledger(tenant_id: int, family_id: int | None, period: str) -> PeriodLedger:
    """ledger_of_period in a thread, over a connection of its own.

    It is rare, and leaves none behind.
    """
    return await asyncio.to_thread(read_and_close, tenant_id, family_id, period)


def read_and_close(tenant_id: int, family_id: int | None, period: str) -> PeriodLedger:
    try:
        return ledger_of_period(tenant_id, family_id, period)
    finally:
        connection.close()


def ledger_of_period(tenant_id: int, family_id: int | None, period: str) -> PeriodLedger:
    """Of the tenant, or of a key and those it was rotated to.

    A request belongs to the day and month of its admission.
    """
    span = Period.named(period)
    with tenant_scope(tenant_id), transaction.atomic():
        rows = UsageRecord.objects.filter(started_at__gte=span.start, started_at__lt=span.end)
        closed = rows.exclude(status=UsageStatus.OPEN)
        if family_id is not None:
            of_family = Q(api_key=family_id) | Q(api_key__family=family_id)
            closed = closed.filter(of_family)
        recent = closed.filter(ended_at__gte=timezone.now() - MAX_LAG)
        # Ids first: a row that closes in between is then counted once more, never once less.
        ids = tuple(recent.values_list("request_id", flat=True))
        sums = closed.aggregate(
            tokens=Sum(F("prompt_tokens") + F("completion_tokens")), cost=Sum("cost")
        )
    return PeriodLedger(sums["tokens"] or 0, to_nanos(sums["cost"] or Decimal(0)), ids)
