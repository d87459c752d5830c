"""Limits: the columns that hold them, and the values that are enforced.

A plan has them for each of its tenants, a tenant may have tighter ones of its own, and so may each
key. None is no limit.
"""

from dataclasses import astuple, dataclass
from decimal import Decimal
from typing import TypeVar

from django.db import models
from django.db.models import Q

from tenants.money import MAX_BUDGET, to_nanos

Amount = TypeVar("Amount", int, Decimal)

# Lua counts in doubles: whole numbers are exact up to 2**53.
MAX_TOKENS = 10**15


def within(column: str, most: object, what: str) -> models.CheckConstraint:
    return models.CheckConstraint(
        condition=Q(**{f"{column}__isnull": True})
        | Q(**{f"{column}__gte": 0, f"{column}__lte": most}),
        name=f"%(class)s_{column}_in_range",
        violation_error_message=f"{what} is between 0 and {most}.",
    )


class LimitColumns(models.Model):
    """An empty limit is no limit; days and months are UTC."""

    requests_per_minute = models.PositiveIntegerField(null=True, blank=True)
    tokens_per_minute = models.PositiveIntegerField(null=True, blank=True)
    max_concurrency = models.PositiveIntegerField(null=True, blank=True)
    tokens_per_day = models.PositiveBigIntegerField(null=True, blank=True)
    tokens_per_month = models.PositiveBigIntegerField(null=True, blank=True)
    daily_budget = models.DecimalField(max_digits=12, decimal_places=2, null=True, blank=True)
    monthly_budget = models.DecimalField(max_digits=12, decimal_places=2, null=True, blank=True)

    class Meta:
        abstract = True
        constraints = [
            within("tokens_per_day", MAX_TOKENS, "A limit of tokens"),
            within("tokens_per_month", MAX_TOKENS, "A limit of tokens"),
            within("daily_budget", MAX_BUDGET, "A daily budget"),
            within("monthly_budget", MAX_BUDGET, "A monthly budget"),
        ]


LIMIT_COLUMNS = tuple(field.name for field in LimitColumns._meta.local_fields)


@dataclass(frozen=True)
class Limits:
    """None is no limit. Budgets are nano-units of the currency in a day or month of UTC."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrency: int | None = None
    monthly_budget_nanos: int | None = None
    daily_budget_nanos: int | None = None
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None

    @property
    def has_budget(self) -> bool:
        """Whether anything of a day or month is limited."""
        money = (self.monthly_budget_nanos, self.daily_budget_nanos)
        return (*money, self.tokens_per_day, self.tokens_per_month) != (None,) * 4

    def tightest(self, other: "Limits") -> "Limits":
        """Of each two the lower one."""
        return Limits(*map(lower, astuple(self), astuple(other)))


def lower(one: Amount | None, another: Amount | None) -> Amount | None:
    return min((limit for limit in (one, another) if limit is not None), default=None)


NO_LIMITS = Limits()


def limits_of(row: LimitColumns) -> Limits:
    return Limits(
        requests_per_minute=row.requests_per_minute,
        tokens_per_minute=row.tokens_per_minute,
        max_concurrency=row.max_concurrency,
        monthly_budget_nanos=None if row.monthly_budget is None else to_nanos(row.monthly_budget),
        daily_budget_nanos=None if row.daily_budget is None else to_nanos(row.daily_budget),
        tokens_per_day=row.tokens_per_day,
        tokens_per_month=row.tokens_per_month,
    )
