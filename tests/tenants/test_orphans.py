"""What a killed process left behind: closed by what the replicas know, on real stores."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from tenants.audit import Actor
from tenants.auth import Principal, authenticate_key
from tenants.errors import ApiError
from tenants.keys import create_key
from tenants.metering import TokenCounts, touch_usage
from tenants.models import UsageRecord
from tenants.orphans import Ask, Attempt, settle_orphans
from tenants.quota import Quota
from tenants.scope import unscoped
from tests.factories import get_acme
from tests.tenants.test_metering import FEBRUARY, get_row, make_price, opened, settled

pytestmark = pytest.mark.django_db(transaction=True)

DIGEST = "d" * 64
FIRST, SECOND = "http://first", "http://second"
SHORT, LONG = TokenCounts(10, 4, 5), TokenCounts(10, 4, 9)


def nobody(request_ids: Sequence[str]) -> list[Attempt]:
    return []


def made(counts: TokenCounts, number: int = 1, **more: object) -> Attempt:
    known = {"replica": FIRST, "digest": DIGEST, "is_running": False} | more
    return Attempt("r1", number, counts=counts, **known)  # type: ignore[arg-type]


def sweep(ask: Ask) -> list[str]:
    """Once every open row is old enough: the ids of those that were closed."""
    rows = settle_orphans(ask, timezone.now() + timedelta(seconds=61))
    return sorted(row.request_id for row in rows)


def test_it_works() -> None:
    """Asked once, for all of them; with what was last reported where nobody knows more."""
    price, asked = make_price("1", "1", "1"), []

    def ask(request_ids: Sequence[str]) -> list[Attempt]:
        asked.append(sorted(request_ids))
        return []

    starts = {name: opened(name, price) for name in ("dead", "silent", "alive")}
    touch_usage({"dead": TokenCounts(10, 0, 5)})
    assert settle_orphans(ask) == [] and asked == []
    with unscoped():
        ahead = timezone.now() + timedelta(seconds=30)
        UsageRecord.objects.filter(request_id="alive").update(heartbeat_at=ahead)
    assert sweep(ask) == ["dead", "silent"]
    assert sweep(ask) == [] and asked == [["dead", "silent"]]
    dead, silent = get_row("dead"), get_row("silent")
    assert (dead.status, dead.error_code, dead.cost) == ("failed", "orphaned", Decimal("0.000015"))
    assert (silent.status, silent.prompt_tokens, silent.cost) == ("failed", None, Decimal(0))
    assert get_row("alive").status == "open"
    # The process was slow, not dead: the truth wins, once.
    assert settled(starts["dead"], "finished", 10, 0, 20) == 1
    assert settled(starts["dead"], "finished", 10, 0, 30) == 0
    assert get_row("dead").cost == Decimal("0.00003")


def test_touching_keeps_a_row_alive() -> None:
    opened()
    with unscoped():
        UsageRecord.objects.update(heartbeat_at=timezone.now() - timedelta(hours=1))
    touch_usage({"r1": None})
    assert settle_orphans(nobody) == []


@pytest.mark.case("C135")
@pytest.mark.parametrize(
    ("reported", "attempts", "expected", "replica"),
    [
        (None, [made(LONG)], LONG, FIRST),
        (SHORT, [made(LONG)], LONG, FIRST),
        # What was delivered is charged, whatever a replica says.
        (LONG, [made(SHORT)], LONG, FIRST),
        # An attempt that made nothing is free.
        (None, [made(TokenCounts(10, 0, 0))], None, FIRST),
        (SHORT, [made(TokenCounts(10, 0, 0))], SHORT, FIRST),
        # Lost before its first token arrived, then another replica answered.
        (None, [made(LONG), made(SHORT, 2, replica=SECOND)], SHORT, SECOND),
        (None, [made(SHORT, 2, replica=SECOND), made(LONG)], SHORT, SECOND),
        (None, [made(LONG), made(TokenCounts(10, 0, 0), 2, replica=SECOND)], None, FIRST),
        # The lost connection's end has not come through; that one was not delivered.
        (None, [made(LONG, is_running=True), made(SHORT, 2, replica=SECOND)], SHORT, SECOND),
        # Another version than was asked for: none of it was passed on.
        (None, [made(LONG, digest="e" * 64)], None, FIRST),
        (None, [made(LONG, digest="")], None, FIRST),
        (None, [made(LONG, 2, digest="e" * 64, replica=SECOND), made(SHORT)], SHORT, FIRST),
    ],
)
def test_what_the_replicas_know(
    reported: TokenCounts | None,
    attempts: list[Attempt],
    expected: TokenCounts | None,
    replica: str,
) -> None:
    price = make_price("1", "0", "10")
    opened("r1", price, digest=DIGEST, adapter="bot", replica=FIRST)
    touch_usage({"r1": reported})
    assert sweep(lambda ids: attempts) == ["r1"]
    row = get_row()
    found = (row.prompt_tokens, row.cached_tokens, row.completion_tokens)
    assert found == (
        (None, None, None)
        if expected is None
        else (expected.prompt, expected.cached, expected.completion)
    )
    cost = 0 if expected is None else Decimal(6 + 10 * expected.completion) / 10**6
    assert (row.status, row.error_code, row.cost, row.replica) == (
        "failed",
        "orphaned",
        cost,
        replica,
    )


def test_what_a_replica_still_makes_is_not_over() -> None:
    opened("r1", digest=DIGEST, replica=FIRST)
    opened("r2")
    before = get_row().heartbeat_at
    assert sweep(lambda ids: [made(SHORT, is_running=True)]) == ["r2"]
    row = get_row()
    assert (row.status, row.completion_tokens) == ("open", 5)
    # Not asked for again at once, in the place of others.
    assert row.heartbeat_at > before
    # The replica is killed: what it said then is known.
    assert sweep(nobody) == ["r1"]
    assert get_row().completion_tokens == 5


def test_a_process_that_was_slow() -> None:
    """It writes while the replicas are asked: that is no orphan."""
    one = opened("r1", digest=DIGEST)

    def ask_while(write: Callable[[], object]) -> Ask:
        def ask(ids: Sequence[str]) -> list[Attempt]:
            write()
            return [made(LONG)]

        return ask

    assert sweep(ask_while(lambda: touch_usage({"r1": SHORT}))) == []
    assert (get_row().status, get_row().completion_tokens) == ("open", 5)
    assert sweep(ask_while(lambda: settled(one, "finished", 10, 4, 7))) == []
    assert (get_row().status, get_row().completion_tokens) == ("finished", 7)


async def reserve(who: Principal, request_id: str, cost_nanos: int) -> None:
    quota = Quota()
    try:
        await quota.reserve(who, request_id, 100, cost_nanos)
    finally:
        await quota.close()


@pytest.mark.case("C135")
def test_a_killed_processes_request_is_billed_and_freed() -> None:
    acme = get_acme()
    acme.plan.max_concurrency = 1
    acme.plan.monthly_budget = 1
    acme.plan.save()
    price = make_price("1000", "1000", "1000", FEBRUARY - timedelta(days=1000))
    who = authenticate_key(create_key(Actor(acme.id, "system"), "ci", ["inference"]).raw)
    name = f"dead-{who.key_id}"
    async_to_sync(reserve)(who, name, 900_000_000)
    opened(name, price)
    touch_usage({name: TokenCounts(300, 0, 50)})
    last = Attempt(name, 1, FIRST, "", False, TokenCounts(300, 0, 100))
    assert sweep(lambda ids: [last]) == [name]
    row = get_row(name)
    assert (row.status, row.error_code, str(row.cost.normalize())) == ("failed", "orphaned", "0.4")
    # Its hold is free, and the budget counts 0.4, from the ledger: 0.61 is too much, 0.6 is not.
    with pytest.raises(ApiError) as caught:
        async_to_sync(reserve)(who, "next", 610_000_000)
    assert caught.value.code == "insufficient_quota"
    async_to_sync(reserve)(who, "next", 600_000_000)
    asyncio.run(forget(acme.id))


async def forget(tenant_id: int) -> None:
    """Row ids begin again in the next test; the store's keys must not outlive them."""
    quota = Quota()
    for key in await quota._client.keys(f"quota:{{{tenant_id}}}:*"):
        await quota._client.delete(key)
    await quota.close()
