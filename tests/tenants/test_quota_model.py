"""Any order of verbs, at any time, from any process: the store agrees with a plain model.

QUOTA_EXAMPLES: how many orders are tried, 40 where it is not set.
"""

import asyncio
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import product
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.limits import Limits
from tenants.quota import Quota
from tenants.recount import PeriodLedger
from tenants.reservation import Reservation
from tests.services import start_valkey
from tests.tenants.quota_model import HOLD_MS, MINUTE_MS, Request, Scope, World, has_minute
from tests.tenants.test_quota import START_MS, caller

HOUR_MS, DAY_MS = 60 * MINUTE_MS, 24 * 60 * MINUTE_MS
NUM_GATEWAYS, NUM_TENANTS = 3, 2
FAMILIES = (None, 1, 2)
NUM_SCOPES = NUM_TENANTS * len(FAMILIES)
# A month's last hour, so that an hour more is another day and month.
EVE_MS = START_MS + 16 * DAY_MS + 15 * HOUR_MS
WHOSE = st.tuples(st.integers(0, NUM_TENANTS - 1), st.sampled_from(FAMILIES))
LIMITS = st.builds(
    Limits,
    requests_per_minute=st.none() | st.integers(2, 5),
    tokens_per_minute=st.none() | st.integers(500, 1500),
    max_concurrency=st.none() | st.integers(1, 4),
    monthly_budget_nanos=st.none() | st.integers(1000, 5000),
    daily_budget_nanos=st.none() | st.integers(1000, 3000),
    tokens_per_day=st.none() | st.integers(500, 2000),
    tokens_per_month=st.none() | st.integers(1000, 3000),
)
# Of what there is, which depends on when connections were killed: what is drawn must not.
PICK = st.integers(0, 1000)
WORDS = {
    "requests_per_minute": "requests per minute",
    "tokens_per_minute": "tokens per minute",
    "max_concurrency": "concurrent requests",
    "monthly_budget_nanos": "the monthly budget",
    "daily_budget_nanos": "the daily budget",
    "tokens_per_month": "tokens per month",
    "tokens_per_day": "tokens per day",
}


@cache
def store_url() -> str:
    """A store of its own: its connections are killed."""
    return start_valkey()[1]


class QuotaMachine(RuleBasedStateMachine):
    @initialize(
        limits=st.lists(LIMITS, min_size=NUM_SCOPES, max_size=NUM_SCOPES),
        now_ms=st.sampled_from([START_MS, EVE_MS]),
    )
    def start(self, limits: list[Limits], now_ms: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.admin = redis.Redis.from_url(store_url(), decode_responses=True)
        first = secrets.randbelow(2**40)
        self.tenants = [first + number for number in range(NUM_TENANTS)]
        self.world = World(now_ms)
        scopes = product(self.tenants, FAMILIES)
        self.world.limits = dict(zip(scopes, limits, strict=True))
        self.quotas = [self.make_quota() for _ in range(NUM_GATEWAYS)]
        self.crashed: list[Quota] = []
        # What each running request's gateway knows of it; without one, the gateway has died.
        self.reservations: dict[str, tuple[Quota, Reservation]] = {}
        self.ended: list[Reservation] = []
        self.number = 0

    def make_quota(self) -> Quota:
        async def ledger(tenant_id: int, family_id: int | None, period: str) -> PeriodLedger:
            return self.world.ledger(tenant_id, family_id, period)

        return Quota(ledger=ledger, clock_ms=lambda: self.world.now_ms, url=store_url())

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            self.nothing_is_left()
        finally:
            for quota in (*self.quotas, *self.crashed):
                self.run(quota.close)
            self.loop.close()
            self.admin.close()

    def run(self, verb: Callable[..., Any], *args: Any) -> Any:
        async def done() -> Any:
            return await verb(*args)

        return self.loop.run_until_complete(done())

    def sums(self, scope: Scope) -> dict[str, str]:
        suffix = "" if scope[1] is None else f":{scope[1]}"
        return self.admin.hgetall(f"quota:{{{scope[0]}}}:sums{suffix}")  # type: ignore[return-value]

    def who(self, tenant_id: int, family_id: int | None) -> Principal:
        of_key = self.world.limits[tenant_id, family_id] if family_id else Limits()
        who = caller(tenant_id, family_id, of_key)
        return Principal(**{**vars(who), "limits": self.world.limits[tenant_id, None]})

    # Requests.

    @rule(
        whose=WHOSE,
        tokens=st.integers(0, 900),
        cost=st.integers(0, 1500),
        gateway=st.integers(0, NUM_GATEWAYS - 1),
        is_cut=st.sampled_from([False] * 9 + [True]),
    )
    def reserve(
        self, whose: tuple[int, int | None], tokens: int, cost: int, gateway: int, is_cut: bool
    ) -> None:
        """is_cut: the store's connections are killed meanwhile."""
        self.number += 1
        one = Request(
            name=f"r{self.number}",
            tenant_id=self.tenants[whose[0]],
            family_id=whose[1],
            day=self.world.day,
            num_tokens=tokens,
            cost=cost,
            held_until=None,
        )
        self.world.arrive(one.tenant_id)
        for scope in one.scopes:
            self.world.look_back(scope)
        expected = {
            (index, name): refusal
            for index, scope in enumerate(one.scopes)
            for name, refusal in self.world.refusals(scope, tokens, cost).items()
        }
        quota = self.quotas[gateway]
        try:
            held = self.run(self.ask, quota, one, is_cut)
        except ApiError as error:
            if error.status == 503:
                assert is_cut
                if self.admin.hexists(f"quota:{{{one.tenant_id}}}:held", one.name):
                    self.admitted(one)
                self.knock(one.tenant_id, one.family_id)
                return
            self.must_be_tightest(one, error, expected)
            return
        assert not any(is_sure for is_sure, _ in expected.values()), expected
        self.admitted(one)
        self.reservations[one.name] = (quota, held)
        self.headers_are_right(one, held.headers)

    def knock(self, tenant_id: int, family_id: int | None) -> None:
        """So that the store, too, has seen somebody come."""
        with suppress(ApiError):
            who = self.who(tenant_id, family_id)
            self.run(self.quotas[0].release, self.run(self.quotas[0].reserve, who, "knock", 0, 0))

    async def ask(self, quota: Quota, one: Request, is_cut: bool) -> Reservation:
        who = self.who(one.tenant_id, one.family_id)
        asked = asyncio.ensure_future(quota.reserve(who, one.name, one.num_tokens, one.cost))
        if is_cut:
            await asyncio.sleep(0)
            await asyncio.to_thread(self.admin.client_kill_filter, _type="normal", skipme=True)
        return await asked

    def admitted(self, one: Request) -> None:
        one.held_until = self.world.now_ms + HOLD_MS
        for scope in one.scopes:
            if has_minute(self.world.limits[scope]):
                one.admitted[scope] = self.world.now_ms
        self.world.requests[one.name] = one

    def must_be_tightest(
        self, one: Request, error: ApiError, expected: dict[tuple[int, str], tuple[bool, int]]
    ) -> None:
        assert error.status == 429
        assert expected, error.message
        longest = max(rank for _, rank in expected.values())
        is_certain = all(is_sure for is_sure, _ in expected.values())
        if not is_certain or longest == 0:
            return
        who = ("Tenant 'acme'", f"Key 'k{one.family_id} (gh-{one.family_id})'")
        answers = [
            (who[index], WORDS[name])
            for (index, name), (_, rank) in expected.items()
            if rank == longest
        ]
        assert any(
            error.message.startswith(scope) and word in error.message for scope, word in answers
        ), (error.message, answers)

    def headers_are_right(self, one: Request, headers: dict[str, str]) -> None:
        for kind in ("requests", "tokens"):
            left = []
            for scope in one.scopes:
                limit = getattr(self.world.limits[scope], f"{kind}_per_minute")
                if limit is not None:
                    window = self.world.window(scope)
                    used = [one.num_tokens if kind == "tokens" else 1 for one in window]
                    left.append(limit - sum(used))
            shown = headers.get(f"x-ratelimit-remaining-{kind}")
            assert shown == (str(min(left)) if left else None)

    @rule(share=st.floats(0, 1), pick=PICK, order=st.integers(0, 2))
    def settle(self, share: float, pick: int, order: int) -> None:
        """Also of a hold that expired. The ledger has it first, later, or at some other time."""
        if not self.reservations:
            return
        name = sorted(self.reservations)[pick % len(self.reservations)]
        quota, held = self.reservations.pop(name)
        one = self.world.requests[name]
        used = int(held.num_tokens * share), int(held.cost_nanos * share)
        if order == 0:
            self.close(one, used)
        self.run(quota.settle, held, *used)
        self.settled(one, used)
        if order == 1 or not held.has_budget:
            self.close(one, used)
        self.ended.append(held)

    @rule(pick=PICK)
    def release(self, pick: int) -> None:
        """It failed before it ran: it costs nothing, and was no request."""
        if not self.reservations:
            return
        name = sorted(self.reservations)[pick % len(self.reservations)]
        quota, held = self.reservations.pop(name)
        self.run(quota.release, held)
        del self.world.requests[name]
        self.ended.append(held)

    @rule(
        pick=PICK,
        is_release=st.booleans(),
        gateway=st.integers(0, NUM_GATEWAYS - 1),
    )
    def settle_again(self, pick: int, is_release: bool, gateway: int) -> None:
        if not self.ended:
            return
        held = self.ended[pick % len(self.ended)]
        quota = self.quotas[gateway]
        self.run(*(quota.release, held) if is_release else (quota.settle, held, 999, 999))

    def close(self, one: Request, used: tuple[int, int]) -> None:
        one.num_tokens, one.cost = used
        one.is_closed, one.closed_at = True, self.world.now_ms

    def settled(self, one: Request, used: tuple[int, int]) -> None:
        one.num_tokens, one.cost = used
        one.is_settled, one.held_until = True, None

    # Faults.

    @rule(gateway=st.integers(0, NUM_GATEWAYS - 1))
    def kill_a_gateway(self, gateway: int) -> None:
        """Nothing of it is settled: its holds run out, its rows are closed by the sweeper."""
        dead = self.quotas[gateway]
        self.crashed.append(dead)
        self.quotas[gateway] = self.make_quota()
        self.reservations = {
            name: pair for name, pair in self.reservations.items() if pair[0] is not dead
        }

    def orphans(self) -> Iterator[Request]:
        for one in self.world.requests.values():
            if not one.is_over and one.name not in self.reservations:
                yield one

    @rule(share=st.floats(0, 1), gateway=st.integers(0, NUM_GATEWAYS - 1))
    def sweep(self, share: float, gateway: int) -> None:
        for one in list(self.orphans()):
            used = int(one.num_tokens * share), int(one.cost * share)
            self.close(one, used)
            row = (one.tenant_id, one.family_id, one.name, one.day)
            self.run(self.quotas[gateway].abandon, *row, used[0])
            self.settled(one, used)

    @rule(tenant=st.integers(0, NUM_TENANTS - 1))
    def empty_the_store(self, tenant: int) -> None:
        tenant_id = self.tenants[tenant]
        if keys := self.admin.keys(f"quota:{{{tenant_id}}}:*"):
            self.admin.delete(*keys)  # type: ignore[misc]
        self.world.forget(tenant_id)
        # Of what was settled before, the store knows nothing any more.
        self.ended = [held for held in self.ended if held.tenant_id != tenant_id]
        self.write_the_ledger()

    @rule(whose=WHOSE, of_day=st.booleans())
    def lose_a_counter(self, whose: tuple[int, int | None], of_day: bool) -> None:
        period = self.world.day if of_day else self.world.day[:7]
        suffix = "" if whose[1] is None else f":{whose[1]}"
        name = f"quota:{{{self.tenants[whose[0]]}}}:sums{suffix}"
        self.admin.hdel(name, f"{period}:tokens", f"{period}:nanos")

    @rule(whose=WHOSE, limits=LIMITS)
    def change_limits(self, whose: tuple[int, int | None], limits: Limits) -> None:
        self.write_the_ledger()
        self.world.limits[self.tenants[whose[0]], whose[1]] = limits

    # Time.

    @rule(ms=st.integers(0, 2000) | st.sampled_from([20_000, 59_999, 60_000, 60_001]))
    def wait(self, ms: int) -> None:
        if ms > 2000:
            self.write_the_ledger()
        self.world.now_ms += ms

    @rule(ms=st.sampled_from([-1, -999, -30_000, -HOUR_MS, HOUR_MS, DAY_MS, -DAY_MS, 31 * DAY_MS]))
    def step_the_clock(self, ms: int) -> None:
        self.write_the_ledger()
        self.world.now_ms += ms

    @rule()
    def write_the_ledger(self) -> None:
        """It lags the counters by less than any wait."""
        for one in self.world.requests.values():
            if one.is_settled and not one.is_closed:
                self.close(one, (one.num_tokens, one.cost))

    # What always holds.

    @invariant()
    def counters_are_the_ledger(self) -> None:
        for scope in getattr(self, "world", World(0)).limits:
            for name, value in self.sums(scope).items():
                period, _, kind = name.partition(":")
                if kind:
                    low, high = self.world.spent(scope, period, kind == "nanos")
                    assert int(value) == low == high, (scope, name)

    @invariant()
    def what_is_held_is_what_runs(self) -> None:
        for scope in getattr(self, "world", World(0)).limits:
            sums, held = self.sums(scope), self.world.held(scope)
            # Holds that ran out are let go when somebody comes.
            if all((one.held_until or 0) > self.world.now_ms for one in held):
                found = [int(sums.get(f"{name}", 0)) for name in ("running", "held_tokens")]
                assert found == [len(held), sum(one.num_tokens for one in held)]

    def nothing_is_left(self) -> None:
        """All gateways died; a minute later nothing is held."""
        if not hasattr(self, "world"):
            return
        self.write_the_ledger()
        # The first to come finds whether the clock was set back.
        for _ in range(2):
            self.world.now_ms += 2 * MINUTE_MS
            for tenant_id, family_id in self.world.limits:
                self.knock(tenant_id, family_id)
        for scope in self.world.limits:
            sums = self.sums(scope)
            # A minute that is limited no more is left to expire.
            minute = ["tokens"] if has_minute(self.world.limits[scope]) else []
            for name in ("running", "held_tokens", "held_nanos", *minute):
                assert int(sums.get(name, 0)) == 0, (scope, name)
            assert not self.admin.exists(f"quota:{{{scope[0]}}}:holds")
            assert not self.admin.exists(f"quota:{{{scope[0]}}}:held")


@pytest.mark.case("C135")
@pytest.mark.timeout(0)
def test_any_order() -> None:
    """Reservations that some path never gives back, refunds in the wrong window, counters seeded
    twice: each was somebody's fault. Here no order of verbs, faults and clock steps over several
    gateways, keys and tenants admits more than a limit, refuses what fits, or leaves anything.
    """
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        QuotaMachine,
        settings=settings(
            max_examples=int(os.environ.get("QUOTA_EXAMPLES", "40")),
            stateful_step_count=40,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            # An order of forty steps over a real store takes minutes to shrink.
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
        ),
    )
