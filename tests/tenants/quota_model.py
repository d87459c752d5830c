"""What the limits mean, in plain Python over the list of all requests there ever were."""

from dataclasses import dataclass, field, fields
from datetime import UTC, datetime

from tenants.limits import Limits
from tenants.recount import PeriodLedger

MINUTE_MS = 60_000
HOLD_MS = 60_000
LAG_MS = 120_000
MONTHS, DAYS, NEVER = 31 * 86_400_000, 86_400_000, 10**15

# A tenant, or a family of its keys.
Scope = tuple[int, int | None]


@dataclass
class Request:
    name: str
    tenant_id: int
    family_id: int | None
    day: str
    num_tokens: int
    cost: int
    # Until when it is held; None: it is not.
    held_until: int | None
    # When it was admitted, in the window of each scope that kept one.
    admitted: dict[Scope, int] = field(default_factory=dict)
    # Known to the ledger, to the store.
    is_closed: bool = False
    is_settled: bool = False
    closed_at: int = 0

    @property
    def scopes(self) -> list[Scope]:
        own = [] if self.family_id is None else [(self.tenant_id, self.family_id)]
        return [(self.tenant_id, None), *own]

    @property
    def is_over(self) -> bool:
        return self.is_closed or self.is_settled

    @property
    def is_half_over(self) -> bool:
        """The ledger has it, the store still holds it: counted once or twice, never not at all."""
        return self.is_closed and not self.is_settled


class World:
    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.limits: dict[Scope, Limits] = {}
        self.requests: dict[str, Request] = {}

    @property
    def day(self) -> str:
        return datetime.fromtimestamp(self.now_ms / 1000, UTC).strftime("%Y-%m-%d")

    def of(self, scope: Scope) -> list[Request]:
        return [one for one in self.requests.values() if scope in one.scopes]

    def window(self, scope: Scope) -> list[Request]:
        since = self.now_ms - MINUTE_MS
        return [one for one in self.of(scope) if one.admitted.get(scope, since) > since]

    def held(self, scope: Scope) -> list[Request]:
        return [one for one in self.of(scope) if one.held_until is not None]

    def spent(self, scope: Scope, period: str, is_money: bool) -> tuple[int, int]:
        """At least and at most."""
        of_period = [one for one in self.of(scope) if one.day.startswith(period) and one.is_over]
        used = [
            (0 if one.is_half_over else used, used)
            for one in of_period
            for used in [one.cost if is_money else one.num_tokens]
        ]
        return sum(low for low, _ in used), sum(high for _, high in used)

    def arrive(self, tenant_id: int) -> None:
        """What any request of the tenant sets right: holds that ran out, a clock set back."""
        for one in self.of((tenant_id, None)):
            if one.held_until is not None:
                one.held_until = min(one.held_until, self.now_ms + HOLD_MS)
                if one.held_until <= self.now_ms:
                    one.held_until = None

    def look_back(self, scope: Scope) -> None:
        """A scope that keeps its minute forgets what has left it, for good, and has nothing in the
        future: whatever the clock does next.
        """
        if has_minute(self.limits[scope]):
            for one in self.of(scope):
                at = one.admitted.pop(scope, 0)
                if at > self.now_ms - MINUTE_MS:
                    one.admitted[scope] = min(at, self.now_ms)

    def refusals(self, scope: Scope, tokens: int, cost: int) -> dict[str, tuple[bool, int]]:
        """Of each limit that may be in the way: whether it surely is, and its rank by how long."""
        limits, found = self.limits[scope], {}
        window, held = self.window(scope), self.held(scope)
        if over(limits.tokens_per_minute, tokens):
            found["tokens_per_minute"] = (True, NEVER)
        elif over(limits.tokens_per_minute, tokens + sum(one.num_tokens for one in window)):
            found["tokens_per_minute"] = (True, 0)
        if over(limits.requests_per_minute, len(window) + 1):
            found["requests_per_minute"] = (True, 0)
        if over(limits.max_concurrency, len(held) + 1):
            found["max_concurrency"] = (True, 0)
        for name, period, rank in (
            ("monthly_budget_nanos", self.day[:7], MONTHS),
            ("tokens_per_month", self.day[:7], MONTHS),
            ("daily_budget_nanos", self.day, DAYS),
            ("tokens_per_day", self.day, DAYS),
        ):
            limit, is_money = getattr(limits, name), name.endswith("nanos")
            if limit is None:
                continue
            wanted = cost if is_money else tokens
            holding = sum(one.cost if is_money else one.num_tokens for one in held)
            low, high = self.spent(scope, period, is_money)
            if high >= limit or high + holding + wanted > limit:
                is_sure = low >= limit or low + holding + wanted > limit
                is_spent = high >= limit or high + wanted > limit
                found[name] = (is_sure, rank if is_spent else 0)
        return found

    def forget(self, tenant_id: int) -> None:
        """The store was emptied: windows and holds begin anew."""
        for one in self.of((tenant_id, None)):
            one.admitted.clear()
            one.held_until = None

    def ledger(self, tenant_id: int, family_id: int | None, period: str) -> PeriodLedger:
        rows = [one for one in self.of((tenant_id, family_id)) if one.day.startswith(period)]
        closed = [one for one in rows if one.is_closed]
        recent = [one.name for one in closed if one.closed_at >= self.now_ms - LAG_MS]
        tokens, cost = sum(one.num_tokens for one in closed), sum(one.cost for one in closed)
        return PeriodLedger(tokens, cost, tuple(recent))


def over(limit: int | None, wanted: int) -> bool:
    return limit is not None and wanted > limit


def has_minute(limits: Limits) -> bool:
    return (limits.requests_per_minute, limits.tokens_per_minute) != (None, None)


def names_of(limits: Limits) -> list[str]:
    return [one.name for one in fields(limits) if getattr(limits, one.name) is not None]
