"""Limits of keys beside their tenant's, of days beside months, of tokens beside money."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
import pytest_asyncio

from tenants.errors import ApiError
from tenants.limits import Limits
from tenants.quota import Quota
from tenants.reservation import Reservation
from tests.services import start_valkey
from tests.tenants.test_quota import MINUTE_MS, Books, Clock, caller, forget_everything, refused

HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def clock() -> Clock:
    """2027-01-15T08:00:00Z."""
    return Clock()


@pytest.fixture
def books() -> Books:
    return Books()


@pytest_asyncio.fixture
async def quota(clock: Clock, books: Books) -> AsyncIterator[Quota]:
    quota = Quota(ledger=books, clock_ms=clock)
    yield quota
    await quota.close()


async def test_it_works(quota: Quota) -> None:
    """Two keys of a tenant: each has its own limit, and both share the tenant's."""
    one = caller(key_limits=Limits(requests_per_minute=2), requests_per_minute=3)
    other = replace(one, family_id=2, key_name="other (gh-2)")
    held = await quota.reserve(one, "a", 1, 0)
    assert held.headers["x-ratelimit-limit-requests"] == "2"
    assert held.headers["x-ratelimit-remaining-requests"] == "1"
    await quota.reserve(one, "b", 1, 0)
    error = await refused(quota, one, "c")
    assert error.message.startswith("Key 'k1 (gh-1)': limit 2 requests per minute reached, used 2")
    assert error.headers["x-ratelimit-remaining-requests"] == "0"
    last = await quota.reserve(other, "c", 1, 0)
    # One more of its own, none of the tenant's: the tighter one is shown.
    assert last.headers["x-ratelimit-limit-requests"] == "3"
    assert last.headers["x-ratelimit-remaining-requests"] == "0"
    error = await refused(quota, other, "d")
    assert error.message.startswith("Tenant 'acme': limit 3 requests per minute reached, used 3")


LIMITS = [
    ("requests_per_minute", 2, "limit 2 requests per minute reached, used 2 in the last 60 s."),
    ("tokens_per_minute", 25, "limit 25 tokens per minute reached, used 20 in the last 60 s"),
    ("max_concurrency", 2, "limit 2 concurrent requests reached, 2 are running."),
    ("tokens_per_day", 25, "the limit of tokens per day is 25, used 20, this request may need 10."),
    ("tokens_per_month", 25, "the limit of tokens per month is 25, used 20"),
    ("daily_budget_nanos", 2_500_000_000, "the daily budget is 2.5, used 2, this request may cost"),
    ("monthly_budget_nanos", 2_500_000_000, "the monthly budget is 2.5, used 2"),
]
RESET = {
    "tokens_per_day": "2027-01-16T00:00:00Z",
    "daily_budget_nanos": "2027-01-16T00:00:00Z",
    "tokens_per_month": "2027-02-01T00:00:00Z",
    "monthly_budget_nanos": "2027-02-01T00:00:00Z",
}


@pytest.mark.parametrize("of_key", [False, True])
@pytest.mark.parametrize(("name", "limit", "message"), LIMITS)
async def test_each_limit_of_each_scope(
    quota: Quota, name: str, limit: int, message: str, of_key: bool
) -> None:
    """The message names the scope, the limit, what is used, and when there is room again."""
    own = Limits(**{name: limit})
    who = caller(key_limits=own) if of_key else caller(**{name: limit})
    for number in range(2):
        held = await quota.reserve(who, f"r{number}", 10, 10**9)
        if name in RESET:
            await quota.settle(held, 10, 10**9)
    error = await refused(quota, who, "c", tokens=10, cost=10**9)
    scope = "Key 'k1 (gh-1)'" if of_key else "Tenant 'acme'"
    assert error.message.startswith(f"{scope}: {message}"), error.message
    assert error.status == 429
    if name in RESET:
        assert (error.code, error.type) == ("insufficient_quota", "insufficient_quota")
        assert error.headers["x-should-retry"] == "false"
        assert "retry-after" not in error.headers
        assert error.message.endswith(f"It is renewed at {RESET[name]}.")
    else:
        assert error.code == "rate_limit_exceeded"
        assert error.type == ("tokens" if name.startswith("tokens") else "requests")
        wait_ms = int(error.headers["retry-after-ms"])
        assert wait_ms == (1000 if name == "max_concurrency" else MINUTE_MS)
    # Another key of the tenant is bound by the tenant's limits only.
    other = replace(who, family_id=2, key_limits=Limits())
    if of_key:
        await quota.reserve(other, "d", 10, 10**9)
    else:
        await refused(quota, other, "d", tokens=10, cost=10**9)


@pytest.mark.parametrize("name", sorted(RESET))
async def test_what_is_held_counts_until_it_is_settled(quota: Quota, name: str) -> None:
    """It may come back, so the client is told to try again, not that the budget is spent."""
    limit = 25 if name.startswith("tokens") else 2_500_000_000
    who = caller(key_limits=Limits(**{name: limit}))
    held = await quota.reserve(who, "a", 20, 2 * 10**9)
    error = await refused(quota, who, "b", tokens=10, cost=10**9)
    assert (error.code, error.headers["retry-after"]) == ("rate_limit_exceeded", "1")
    assert "held by requests that are running" in error.message
    await quota.settle(held, 5, 5 * 10**8)
    await quota.reserve(who, "b", 20, 2 * 10**9)


async def test_the_limit_that_keeps_out_for_longest_answers(quota: Quota, clock: Clock) -> None:
    limits = Limits(requests_per_minute=1, tokens_per_day=10, tokens_per_month=10)
    who = caller(key_limits=limits, requests_per_minute=1, tokens_per_day=10)
    await quota.settle(await quota.reserve(who, "a", 10, 0), 10, 0)
    error = await refused(quota, who, "b")
    assert error.message.startswith("Key 'k1 (gh-1)': the limit of tokens per month is 10, used 10")
    clock.now_ms += DAY_MS
    error = await refused(quota, who, "b")
    assert "tokens per month" in error.message
    by_month = replace(who, key_limits=Limits(requests_per_minute=1))
    await quota.reserve(by_month, "b", 1, 0)
    clock.now_ms += 1000
    error = await refused(quota, by_month, "c")
    assert error.headers["retry-after-ms"] == "59000"


async def test_what_one_scope_refuses_leaves_nothing_in_the_other(quota: Quota) -> None:
    who = caller(key_limits=Limits(max_concurrency=1), requests_per_minute=3, max_concurrency=3)
    other = replace(who, family_id=2, key_limits=Limits())
    await quota.reserve(who, "a", 1, 0)
    for name in "bcdef":
        await refused(quota, who, name)
    held = await quota.reserve(other, "g", 1, 0)
    assert held.headers["x-ratelimit-remaining-requests"] == "1"


@pytest.mark.case("C137")
async def test_never_over_in_any_minute_whatever_its_phase(quota: Quota, clock: Clock) -> None:
    """A fixed window admits twice the limit around its border. 100 phases: bursts of ten at random
    times, a limit of six for the key and of nine for the tenant of two keys.
    """
    random = Random(137)
    for _ in range(100):
        one = caller(key_limits=Limits(requests_per_minute=6), requests_per_minute=9)
        keys = [one, replace(one, family_id=2)]
        clock.now_ms += random.randrange(MINUTE_MS)
        admitted: list[tuple[int, int]] = []
        for burst in range(3):
            for number in range(10):
                with suppress(ApiError):
                    held = await quota.reserve(keys[number % 2], f"{burst}-{number}", 1, 0)
                    admitted.append((clock.now_ms, held.family_id or 0))
                    await quota.settle(held, 1, 0)
            clock.now_ms += random.choice([1000, 30_000, 59_999, 60_000])
        for since, _ in admitted:
            minute = [key for at, key in admitted if since <= at < since + MINUTE_MS]
            assert len(minute) <= 9
            assert all(minute.count(key) <= 6 for key in (1, 2))
        assert len(admitted) >= 9


@pytest.mark.case("C137")
async def test_a_day_ends_at_midnight_utc(quota: Quota, clock: Clock, books: Books) -> None:
    """Two days' and months' limits; what was admitted before midnight stays in its day."""
    who = caller(tokens_per_day=100, tokens_per_month=150)
    clock.now_ms += 16 * HOUR_MS - 1
    late = await quota.reserve(who, "late", 100, 0)
    await refused(quota, who, "b")
    clock.now_ms += 1
    # It still runs, and nobody knows what it will use of the month: held.
    assert "tokens per day is 100, 100 are used or held" in (await refused(quota, who, "b")).message
    await quota.settle(late, 80, 0)
    held = await quota.reserve(who, "b", 70, 0)
    error = await refused(quota, who, "c", tokens=31)
    assert "tokens per month is 150, 150 are used or held" in error.message
    await quota.settle(held, 70, 0)
    assert (await refused(quota, who, "c")).code == "insufficient_quota"
    clock.now_ms += 17 * DAY_MS
    await quota.reserve(who, "c", 100, 0)
    days = [period for _, period in books.reads]
    assert days == ["2027-01", "2027-01-15", "2027-01-16", "2027-02", "2027-02-02"]


async def test_a_clock_set_back_over_midnight_opens_no_second_day(
    quota: Quota, clock: Clock, books: Books
) -> None:
    who = caller(tokens_per_day=100)
    await quota.settle(await quota.reserve(who, "a", 90, 0), 90, 0)
    clock.now_ms += DAY_MS
    await quota.settle(await quota.reserve(who, "b", 90, 0), 90, 0)
    clock.now_ms -= DAY_MS
    books.num_tokens = 90
    await refused(quota, who, "c", tokens=11)
    await quota.reserve(who, "c", 10, 0)


async def test_members_are_bound_by_the_tenants_limits(quota: Quota) -> None:
    who = caller(key_id=None, max_concurrency=2)
    await quota.reserve(who, "a", 1, 0)
    await quota.reserve(replace(who, family_id=1), "b", 1, 0)
    await refused(quota, who, "c")


@pytest.mark.case("C139")
async def test_every_scope_of_an_emptied_store_is_refilled(
    quota: Quota, clock: Clock, books: Books
) -> None:
    """What ran meanwhile is counted once, in each scope, whichever was counted first."""
    own = Limits(tokens_per_day=1000, monthly_budget_nanos=1000)
    who = caller(key_limits=own, tokens_per_month=1000, daily_budget_nanos=1000)
    held = await quota.reserve(who, "a", 100, 100)
    await forget_everything(quota, who)
    books.num_tokens, books.spent_nanos, books.recent_ids = 700, 700, ["a"]
    later = await quota.reserve(who, "b", 100, 100)
    assert sorted(books.reads[4:], key=str) == sorted(books.reads[:4], key=str)
    assert set(books.reads) == {
        *((None, "2027-01"), (None, "2027-01-15")),
        *((1, "2027-01"), (1, "2027-01-15")),
    }
    await quota.settle(held, 100, 100)
    await quota.settle(later, 100, 100)
    # 700, in which a is, and b.
    await refused(quota, who, "c", tokens=201)
    await refused(quota, who, "c", cost=201)
    await quota.reserve(who, "c", 200, 200)


async def test_a_limit_given_meanwhile_counts_what_settles_after_it(
    quota: Quota, books: Books
) -> None:
    """The ledger is read for the key alone; a settlement that it has already is not added to the
    key's counter again, and is to the tenant's, which was counted before.
    """
    who = caller(tokens_per_month=1000)
    held = await quota.reserve(who, "a", 100, 0)
    books.num_tokens, books.recent_ids = 100, ["a"]
    limited = replace(who, key_limits=Limits(tokens_per_month=1000))
    await quota.reserve(limited, "b", 0, 0)
    await quota.settle(held, 100, 0)
    sums = await quota._client.hgetall(f"quota:{{{who.tenant_id}}}:sums")
    own = await quota._client.hgetall(f"quota:{{{who.tenant_id}}}:sums:1")
    assert (sums["2027-01:tokens"], own["2027-01:tokens"]) == ("100", "100")


@pytest.mark.case("C133")
async def test_200_at_one_instant_over_four_processes_and_two_keys(
    clock: Clock, books: Books
) -> None:
    """Each key stops at its own limit, both together at the tenant's; and a new tenant's very
    first requests do too.
    """
    quotas = [Quota(ledger=books, clock_ms=clock) for _ in range(4)]
    one = caller(key_limits=Limits(tokens_per_day=600), tokens_per_month=1000)
    keys = [one, replace(one, family_id=2)]
    calls = [quotas[i % 4].reserve(keys[i % 2], f"r{i}", 100, 0) for i in range(200)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    granted = [outcome for outcome in outcomes if isinstance(outcome, Reservation)]
    errors = [outcome for outcome in outcomes if isinstance(outcome, ApiError)]
    assert (len(granted), len(errors)) == (10, 190)
    assert all(sum(held.family_id == key for held in granted) <= 6 for key in (1, 2))
    for quota in quotas:
        await quota.close()


async def test_scopes_cost_no_further_calls() -> None:
    """One script call to reserve and one to settle, whatever is limited; few commands in each."""
    process, url = start_valkey()
    quota = Quota(ledger=Books(), url=url)
    every = Limits(**{name: 10**6 for name, _, _ in LIMITS})
    who = replace(caller(key_limits=every), limits=every)
    await quota.settle(await quota.reserve(who, "warm", 10, 10), 5, 5)
    await quota._client.config_resetstat()
    for number in range(10):
        await quota.settle(await quota.reserve(who, f"r{number}", 10, 10), 5, 5)
    stats = await quota._client.info("commandstats")
    await quota.close()
    process.kill()
    process.wait()
    assert stats["cmdstat_evalsha"]["calls"] == 20
    assert sum(one["calls"] for one in stats.values()) - 20 <= 10 * 40, stats
