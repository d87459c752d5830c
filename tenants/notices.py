"""Soft limits: half, most, or all of what a month may take is used. Said once, whoever sees it.

Each settlement shows its process what the month has used. A row says it first, and its constraint
lets one process in: the others, and the same one after a crash, find it said.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from django.db import DatabaseError, connection, transaction

from tenants.billing.periods import MONTH_CHARS
from tenants.denials import Reply
from tenants.events import publish
from tenants.limits import Limits
from tenants.models import BudgetKind, BudgetNotice
from tenants.scope import tenant_scope

log = logging.getLogger(__name__)

PERCENTS = (50, 80, 100)
# More than this forgotten is only said to the database again.
MAX_TOLD = 10_000
# A budget is hardly ever used to the last token: with less left than this, a request that does not
# fit says that it is spent.
ALMOST_SPENT_PERCENT = 99
KIND_OF_LIMIT = {
    "tokens_per_month": BudgetKind.TOKENS.value,
    "monthly_budget_nanos": BudgetKind.MONEY.value,
}


@dataclass(frozen=True)
class Mark:
    """percent of a month's limit is used: the tenant's, or that of a family of its keys."""

    tenant_id: int
    family_id: int | None
    month: str
    kind: str
    limit: int
    percent: int


# A family of keys, or None for the tenant, with its limits.
Scope = tuple[int | None, Limits]


class SoftLimits:
    """Which marks this process knows to be said."""

    def __init__(self, tell: Callable[[Mark, int], Awaitable[object]]) -> None:
        self._tell = tell
        self._told: set[Mark] = set()

    def settled(
        self, tenant_id: int, day: str, scopes: Sequence[Scope], used: Sequence[int | str]
    ) -> Iterator[tuple[Mark, int]]:
        """News, and what is used. used: tokens and nano-units of each scope; "" is unknown."""
        for number, (family_id, limits) in enumerate(scopes):
            pair = used[2 * number : 2 * number + 2]
            for (name, kind), spent in zip(KIND_OF_LIMIT.items(), pair, strict=False):
                limit = getattr(limits, name)
                percent = percent_reached(spent, limit)
                if percent is not None:
                    mark = Mark(tenant_id, family_id, day[:MONTH_CHARS], kind, limit, percent)
                    yield from self._news(mark, int(spent))

    def refused(
        self, tenant_id: int, day: str, scope: Scope, reply: Reply
    ) -> Iterator[tuple[Mark, int]]:
        """The reply says that a budget is spent."""
        kind, (family_id, limits) = KIND_OF_LIMIT.get(reply.name), scope
        limit = getattr(limits, reply.name)
        if kind is not None and limit and 100 * reply.used >= ALMOST_SPENT_PERCENT * limit:
            mark = Mark(tenant_id, family_id, day[:MONTH_CHARS], kind, limit, 100)
            yield from self._news(mark, reply.used)

    def _news(self, mark: Mark, used: int) -> Iterator[tuple[Mark, int]]:
        if mark in self._told:
            return
        if len(self._told) >= MAX_TOLD:
            self._told.clear()
        self._told.add(mark)
        yield mark, used

    async def say(self, mark: Mark, used: int) -> None:
        try:
            await self._tell(mark, used)
        except DatabaseError as error:
            # The next settlement sees it again.
            self._told.discard(mark)
            log.warning("%s is said later: %s", mark, error)


def percent_reached(spent: int | str, limit: int | None) -> int | None:
    if spent == "" or not limit:
        return None
    return max((one for one in PERCENTS if 100 * int(spent) >= one * limit), default=None)


async def tell(mark: Mark, used: int) -> bool:
    """True for the one that says it first. Over a database connection of its own: it is rare."""
    return await asyncio.to_thread(tell_and_close, mark, used)


def tell_and_close(mark: Mark, used: int) -> bool:
    try:
        return write_down(mark, used)
    finally:
        connection.close()


def write_down(mark: Mark, used: int) -> bool:
    with tenant_scope(mark.tenant_id), transaction.atomic():
        same = {
            "tenant_id": mark.tenant_id,
            "api_key_id": mark.family_id,
            "month": mark.month,
            "kind": mark.kind,
            "limit": mark.limit,
        }
        # One that comes late says nothing new.
        if BudgetNotice.objects.filter(**same, percent__gt=mark.percent).exists():
            return False
        row, is_first = BudgetNotice.objects.get_or_create(
            **same, percent=mark.percent, defaults={"used": used}
        )
        if is_first:
            key = row.api_key.public_id if row.api_key else None
            data = {"key": key, "kind": row.kind, "month": row.month, "percent": row.percent}
            publish(mark.tenant_id, "budget.reached", data)
    return is_first
