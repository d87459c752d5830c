"""Limits against a real store, with a clock of the test's own where windows matter."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from itertools import count

import pytest
import pytest_asyncio

from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.limits import NO_LIMITS, Limits
from tenants.quota import Quota
from tenants.recount import PeriodLedger
from tenants.reservation import Reservation

START_MS = 1_800_000_000_000
MINUTE_MS = 60_000

# Apart from those of other runs on the same store.
tenant_ids = count(secrets.randbelow(2**40))


def caller(
    tenant_id: int | None = None,
    key_id: int | None = 1,
    key_limits: Limits = NO_LIMITS,
    **limits: int,
) -> Principal:
    return Principal(
        tenant_id=next(tenant_ids) if tenant_id is None else tenant_id,
        tenant_slug="acme",
        role="key",
        limits=Limits(**limits),
        key_id=key_id,
        family_id=key_id,
        key_limits=key_limits,
        key_name=f"k{key_id} (gh-{key_id})",
        user_id=None,
        scopes=frozenset(),
        cache_salt="",
    )


class Clock:
    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


class Books:
    """A ledger in memory: what it says is what the counters are rebuilt from."""

    def __init__(self) -> None:
        self.spent_nanos = 0
        self.num_tokens = 0
        self.recent_ids: list[str] = []
        self.reads: list[tuple[int | None, str]] = []

    async def __call__(self, tenant_id: int, family_id: int | None, period: str) -> PeriodLedger:
        self.reads.append((family_id, period))
        return PeriodLedger(self.num_tokens, self.spent_nanos, tuple(self.recent_ids))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def books() -> Books:
    return Books()


@pytest_asyncio.fixture
async def quota(clock: Clock, books: Books) -> AsyncIterator[Quota]:
    quota = Quota(ledger=books, clock_ms=clock)
    yield quota
    await quota.close()


async def refused(
    quota: Quota, who: Principal, name: str, tokens: int = 1, cost: int = 0
) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await quota.reserve(who, name, tokens, cost)
    return caught.value


async def forget_everything(quota: Quota, who: Principal) -> None:
    """What a store that was restarted empty has."""
    keys = await quota._client.keys(f"quota:{{{who.tenant_id}}}:*")
    if keys:
        await quota._client.delete(*keys)


async def test_it_works(quota: Quota) -> None:
    who = caller(requests_per_minute=60, tokens_per_minute=1000)
    held = await quota.reserve(who, "a", 100, 0)
    assert held.headers == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1m0s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "900",
        "x-ratelimit-reset-tokens": "1m0s",
    }
    await quota.settle(held, 30, 0)
    later = await quota.reserve(who, "b", 100, 0)
    assert later.headers["x-ratelimit-remaining-tokens"] == "870"


async def test_no_limits(quota: Quota) -> None:
    who = caller()
    for name in "abc":
        assert (await quota.reserve(who, name, 10**9, 10**15)).headers == {}


async def test_requests_per_minute(quota: Quota, clock: Clock) -> None:
    who = caller(requests_per_minute=2)
    await quota.reserve(who, "a", 1, 0)
    clock.now_ms += 20_500
    await quota.reserve(who, "b", 1, 0)
    error = await refused(quota, who, "c")
    assert (error.status, error.code, error.type) == (429, "rate_limit_exceeded", "requests")
    assert error.headers["retry-after"] == "40"
    assert error.headers["retry-after-ms"] == "39500"
    assert error.headers["x-ratelimit-remaining-requests"] == "0"
    assert "limit 2 requests per minute" in error.message
    assert "used 2" in error.message
    assert "39.5s" in error.message
    # The time named is the real one: a millisecond earlier no, then yes.
    clock.now_ms += 39_499
    await refused(quota, who, "c")
    clock.now_ms += 1
    await quota.reserve(who, "c", 1, 0)


async def test_tokens_per_minute(quota: Quota, clock: Clock) -> None:
    who = caller(tokens_per_minute=100)
    await quota.reserve(who, "a", 40, 0)
    clock.now_ms += 10_000
    await quota.reserve(who, "b", 40, 0)
    error = await refused(quota, who, "c", tokens=50)
    assert (error.code, error.type) == ("rate_limit_exceeded", "tokens")
    assert error.headers["retry-after-ms"] == "50000"
    assert "limit 100 tokens per minute" in error.message
    assert "requested 50" in error.message
    error = await refused(quota, who, "c", tokens=61)
    assert error.headers["retry-after-ms"] == "60000"
    clock.now_ms += 50_000
    await quota.reserve(who, "c", 50, 0)


async def test_a_request_that_can_never_fit(quota: Quota) -> None:
    error = await refused(quota, caller(tokens_per_minute=100), "a", tokens=101)
    assert (error.status, error.type) == (429, "tokens")
    assert error.headers["x-should-retry"] == "false"
    assert "retry-after" not in error.headers
    assert "101" in error.message
    assert "100 tokens per minute" in error.message


async def test_concurrency(quota: Quota) -> None:
    who = caller(max_concurrency=2)
    held = await quota.reserve(who, "a", 1, 0)
    await quota.reserve(who, "b", 1, 0)
    error = await refused(quota, who, "c")
    assert (error.code, error.type) == ("rate_limit_exceeded", "requests")
    assert error.headers["retry-after"] == "1"
    assert "2 concurrent requests" in error.message
    await quota.settle(held, 1, 0)
    await quota.reserve(who, "c", 1, 0)


async def test_a_refused_request_leaves_nothing(quota: Quota) -> None:
    who = caller(requests_per_minute=10, tokens_per_minute=100, max_concurrency=1)
    held = await quota.reserve(who, "a", 1, 0)
    for name in "bcdefghijklm":
        await refused(quota, who, name)
    await quota.settle(held, 1, 0)
    later = await quota.reserve(who, "z", 1, 0)
    assert later.headers["x-ratelimit-remaining-requests"] == "8"


@pytest.mark.case("C133")
@pytest.mark.parametrize(
    "limits",
    [
        {"requests_per_minute": 10},
        {"tokens_per_minute": 1009},
        {"max_concurrency": 10},
        {"monthly_budget_nanos": 10_000},
    ],
)
async def test_200_at_one_instant_over_four_processes(
    limits: dict[str, int], clock: Clock, books: Books
) -> None:
    """Four clients stand for four processes: they share nothing but the store."""
    quotas = [Quota(ledger=books, clock_ms=clock) for _ in range(4)]
    who = caller(**limits)
    calls = [quotas[i % 4].reserve(who, f"r{i}", 100, 1000) for i in range(200)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    granted = [outcome for outcome in outcomes if isinstance(outcome, Reservation)]
    errors = [outcome for outcome in outcomes if isinstance(outcome, ApiError)]
    assert len(granted) == 10
    assert len(errors) == 190
    assert {error.status for error in errors} == {429}
    for quota in quotas:
        await quota.close()


@pytest.mark.case("C137")
async def test_window_borders(quota: Quota, clock: Clock) -> None:
    """Never more than the limit in any 60 s: 60 at :59.5, then 60 more at :00.5 are refused."""
    who = caller(requests_per_minute=60)
    clock.now_ms += 59_500
    for i in range(60):
        await quota.reserve(who, f"a{i}", 1, 0)
    clock.now_ms += 1_000
    for i in range(60):
        await refused(quota, who, f"b{i}")
    clock.now_ms += 58_999
    await refused(quota, who, "c")
    clock.now_ms += 1
    for i in range(60):
        await quota.reserve(who, f"d{i}", 1, 0)


@pytest.mark.case("C137")
async def test_a_refund_goes_to_the_window_of_admission(quota: Quota, clock: Clock) -> None:
    who = caller(requests_per_minute=2, tokens_per_minute=100)
    early = await quota.reserve(who, "early", 60, 0)
    clock.now_ms += MINUTE_MS
    await quota.reserve(who, "a", 60, 0)
    # early's window is over: its tokens and its request are not given to this one.
    await quota.settle(early, 10, 0)
    await refused(quota, who, "b", tokens=41)
    last = await quota.reserve(who, "c", 40, 0)
    await quota.release(last)
    again = await quota.reserve(who, "d", 40, 0)
    assert again.headers["x-ratelimit-remaining-requests"] == "0"
    assert again.headers["x-ratelimit-remaining-tokens"] == "0"


async def test_settle_and_release_are_idempotent(quota: Quota) -> None:
    who = caller(requests_per_minute=5, tokens_per_minute=100, monthly_budget_nanos=1000)
    held = await quota.reserve(who, "a", 50, 500)
    for _ in range(3):
        await quota.settle(held, 20, 300)
    await quota.release(held)
    again = await quota.reserve(who, "b", 80, 700)
    assert again.headers["x-ratelimit-remaining-tokens"] == "0"
    assert again.headers["x-ratelimit-remaining-requests"] == "3"
    await quota.release(again)
    await quota.release(again)
    await refused(quota, who, "c", cost=701)
    await quota.reserve(who, "c", 1, 700)


async def test_reserve_is_idempotent(quota: Quota) -> None:
    who = caller(requests_per_minute=5, max_concurrency=1)
    await quota.reserve(who, "a", 1, 0)
    again = await quota.reserve(who, "a", 1, 0)
    assert again.headers["x-ratelimit-remaining-requests"] == "4"


async def test_monthly_budget(quota: Quota, clock: Clock) -> None:
    who = caller(monthly_budget_nanos=2_500_000_000)
    held = await quota.reserve(who, "a", 1, 2_000_000_000)
    error = await refused(quota, who, "b", cost=1_000_000_000)
    # What is only held may come back: worth another try.
    assert error.code == "rate_limit_exceeded"
    assert error.headers["retry-after"] == "1"
    await quota.settle(held, 1, 1_750_000_000)
    error = await refused(quota, who, "b", cost=1_000_000_000)
    assert (error.status, error.code, error.type) == (
        429,
        "insufficient_quota",
        "insufficient_quota",
    )
    assert error.headers["x-should-retry"] == "false"
    assert "retry-after" not in error.headers
    assert "Tenant 'acme': the monthly budget is 2.5, used 1.75" in error.message
    assert "this request may cost 1" in error.message
    assert "2027-02-01T00:00:00Z" in error.message
    clock.now_ms += 31 * 24 * 60 * MINUTE_MS
    await quota.reserve(who, "b", 1, 1_000_000_000)


@pytest.mark.case("C135")
async def test_a_hold_expires_by_itself(clock: Clock, books: Books) -> None:
    who = caller(max_concurrency=1, monthly_budget_nanos=1000)
    dead = Quota(ledger=books, clock_ms=clock)
    held = await dead.reserve(who, "dead", 10, 800)
    await dead.close()
    quota = Quota(ledger=books, clock_ms=clock)
    clock.now_ms += MINUTE_MS - 1
    await refused(quota, who, "b")
    clock.now_ms += 1
    later = await quota.reserve(who, "b", 1, 900)
    await quota.settle(later, 1, 100)
    # Its process was slow, not dead: a late settlement is booked, once.
    await quota.settle(held, 10, 700)
    await quota.settle(held, 10, 700)
    await refused(quota, who, "c", cost=201)
    await quota.reserve(who, "c", 1, 200)
    await quota.close()


async def test_a_living_process_keeps_its_holds(books: Books) -> None:
    quota = Quota(ledger=books, hold_s=0.2)
    who = caller(max_concurrency=1)
    held = await quota.reserve(who, "long", 1, 0)
    await asyncio.sleep(0.6)
    await refused(quota, who, "b")
    await quota.settle(held, 1, 0)
    await quota.reserve(who, "b", 1, 0)
    await quota.close()


async def test_one_tenants_use_is_not_anothers(quota: Quota) -> None:
    await quota.reserve(caller(requests_per_minute=1), "a", 1, 0)
    await quota.reserve(caller(requests_per_minute=1), "a", 1, 0)


async def test_a_clock_set_back_locks_nobody_out(quota: Quota, clock: Clock) -> None:
    who = caller(requests_per_minute=1)
    clock.now_ms += 60 * MINUTE_MS
    await quota.reserve(who, "a", 1, 0)
    clock.now_ms -= 60 * MINUTE_MS
    error = await refused(quota, who, "b")
    assert error.headers["retry-after"] == "60"


@pytest.mark.case("C139")
async def test_an_emptied_store_is_refilled_from_the_ledger(quota: Quota, books: Books) -> None:
    who = caller(monthly_budget_nanos=1000)
    in_ledger = await quota.reserve(who, "in ledger", 1, 100)
    not_yet = await quota.reserve(who, "not-yet", 1, 100)
    await forget_everything(quota, who)
    # Settled while the store is empty; the ledger has the other one already.
    await quota.settle(not_yet, 1, 50)
    books.spent_nanos, books.recent_ids = 400, ["in-ledger"]
    await refused(quota, who, "b", cost=551)
    held = await quota.reserve(who, "b", 1, 550)
    await quota.settle(not_yet, 1, 50)
    await quota.settle(replace_id(in_ledger, "in-ledger"), 1, 100)
    await quota.release(held)
    await refused(quota, who, "c", cost=551)
    await quota.reserve(who, "c", 1, 550)


def replace_id(held: Reservation, request_id: str) -> Reservation:
    return Reservation(**{**vars(held), "request_id": request_id})


async def test_a_budget_given_in_mid_month_counts_from_the_ledger(
    quota: Quota, books: Books
) -> None:
    free = caller()
    await quota.settle(await quota.reserve(free, "a", 1, 100), 1, 100)
    books.spent_nanos = 900
    who = caller(free.tenant_id, monthly_budget_nanos=1000)
    await refused(quota, who, "b", cost=101)
    await quota.reserve(who, "b", 1, 100)
    assert books.reads == [(None, "2027-01")]


@pytest.mark.parametrize(
    "ms, text", [(0, "0ms"), (12, "12ms"), (7660, "7.66s"), (60_000, "1m0s"), (61_500, "1m1.5s")]
)
def test_durations_are_written_as_openai_does(ms: int, text: str) -> None:
    from tenants.denials import duration

    assert duration(ms) == text


async def test_what_the_ledger_has_is_counted_once(quota: Quota, books: Books) -> None:
    """Settled a moment ago, and in the ledger: not counted from both."""
    who = caller(monthly_budget_nanos=1000)
    await quota.settle(await quota.reserve(who, "a", 1, 400), 1, 400)
    books.spent_nanos, books.recent_ids = 400, ["a"]
    await quota._client.hdel(f"quota:{{{who.tenant_id}}}:sums", "2027-01:tokens", "2027-01:nanos")
    await refused(quota, who, "b", cost=601)
    await quota.reserve(who, "b", 1, 600)
