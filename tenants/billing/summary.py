"""Sums of the ledger, made where the rows are. Days are UTC. Call in the tenant's scope."""

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any, TypedDict

from django.db.models import Count, QuerySet, Sum
from django.db.models.functions import TruncDate

from tenants.billing.periods import Period
from tenants.models import UsageRecord


class Totals(TypedDict):
    num_requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: Decimal


class DayTotals(Totals):
    day: date


class AdapterTotals(Totals):
    adapter: str


class DayAdapterTotals(AdapterTotals):
    day: date


SUMS = {
    "num_requests": Count("id"),
    "prompt_tokens": Sum("prompt_tokens"),
    "cached_tokens": Sum("cached_tokens"),
    "completion_tokens": Sum("completion_tokens"),
    "cost": Sum("cost"),
}


def rows_of(period: Period) -> QuerySet[UsageRecord]:
    """By admission; the open ones too: they are requests, and cost nothing yet."""
    return UsageRecord.objects.filter(started_at__gte=period.start, started_at__lt=period.end)


def totals(period: Period) -> Totals:
    return totals_of(rows_of(period).order_by().aggregate(**SUMS))


def totals_by_day(period: Period) -> list[DayTotals]:
    """Days without a request are left out."""
    days = rows_of(period).annotate(day=TruncDate("started_at")).order_by("day").values("day")
    return [{"day": row["day"], **totals_of(row)} for row in days.annotate(**SUMS)]


def totals_by_adapter(period: Period) -> list[AdapterTotals]:
    """adapter "" is the base model."""
    adapters = rows_of(period).order_by("adapter").values("adapter")
    return [{"adapter": row["adapter"], **totals_of(row)} for row in adapters.annotate(**SUMS)]


def totals_by_day_and_adapter(period: Period) -> list[DayAdapterTotals]:
    """Only the pairs that have a request; adapter "" is the base model."""
    days = rows_of(period).annotate(day=TruncDate("started_at")).order_by("day", "adapter")
    sums = days.values("day", "adapter").annotate(**SUMS)
    return [{"day": row["day"], "adapter": row["adapter"], **totals_of(row)} for row in sums]


def totals_of(row: Mapping[str, Any]) -> Totals:
    return {
        "num_requests": row["num_requests"],
        "prompt_tokens": row["prompt_tokens"] or 0,
        "cached_tokens": row["cached_tokens"] or 0,
        "completion_tokens": row["completion_tokens"] or 0,
        "cost": row["cost"] or Decimal(0),
    }
