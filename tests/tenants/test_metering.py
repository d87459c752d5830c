from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from tenants.billing.periods import Period
from tenants.billing.summary import totals, totals_by_adapter, totals_by_day
from tenants.metering import (
    TokenCounts,
    UsageEnd,
    UsageStart,
    open_usage,
    settle_usage,
    touch_usage,
)
from tenants.models import Price, UsageRecord
from tenants.prices import FREE, book_of, price_for
from tenants.scope import tenant_scope, unscoped
from tests.factories import get_acme, get_initech

pytestmark = pytest.mark.django_db

FEBRUARY = datetime(2028, 2, 1, tzinfo=UTC)


def make_price(prompt: str, cached: str, completion: str, since: datetime = FEBRUARY) -> Price:
    return Price.objects.create(
        plan=get_acme().plan,
        prompt_per_million=Decimal(prompt),
        cached_per_million=Decimal(cached),
        completion_per_million=Decimal(completion),
        effective_from=since,
    )


def start(request_id: str = "r1", **fields: Any) -> UsageStart:
    known = {"tenant_id": fields.pop("tenant_id", None) or get_acme().id, "model": "bot"} | fields
    return UsageStart(request_id=request_id, endpoint="chat", **known)


def opened(request_id: str = "r1", price: Price | None = None, **fields: Any) -> UsageStart:
    one = start(request_id, prices=FREE if price is None else book_of(price), **fields)
    open_usage([one])
    return one


def settled(one: UsageStart, status: str, *counts: int | None, **more: str) -> int:
    known = TokenCounts(*(count or 0 for count in counts)) if None not in counts else None
    return settle_usage([UsageEnd(one, status, known, **more)])


def get_row(request_id: str = "r1") -> UsageRecord:
    with unscoped():
        return UsageRecord.objects.get(request_id=request_id)


def test_it_works() -> None:
    price = make_price("2.50", "1.25", "10")
    one = opened(price=price, adapter="bot", version=3, digest="d" * 64)
    row = get_row()
    assert (row.status, row.prompt_tokens, row.ended_at) == ("open", None, None)
    assert settled(one, "finished", 10, 4, 5, replica="http://r") == 1
    row = get_row()
    assert (row.status, row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (
        "finished",
        10,
        4,
        5,
    )
    assert (row.adapter, row.version, row.replica) == ("bot", 3, "http://r")
    assert row.cost == Decimal("0.00007")
    assert row.ended_at is not None


@pytest.mark.case("C126")
def test_cached_tokens_are_a_part_of_the_prompt() -> None:
    book = price_for_acme(make_price("2.50", "1.25", "10.00"))
    assert book.cost(1500, 1024, 200) == Decimal("0.004470")
    assert book.cost_nanos(1500, 1024, 200) == 4_470_000
    for counts in ((10, 11, 0), (10, -1, 0), (10, 0, -1)):
        with pytest.raises(ValueError, match="cached"):
            book.cost(*counts)


def price_for_acme(price: Price) -> Any:
    return price_for(get_acme().id, price.effective_from)


@pytest.mark.case("C130")
def test_sub_cent_prices_are_exact() -> None:
    price = make_price("0.20", "0.20", "0.000001")
    for number in range(100):
        settled(opened(f"r{number}", price, started_at=FEBRUARY), "finished", 37, 0, 1)
    assert get_row("r7").cost == Decimal("0.000007400001")
    with tenant_scope(get_acme().id):
        assert totals(Period.of_month("2028-02"))["cost"] == Decimal("0.0007400001")
    assert price_for_acme(price).cost(10_000_000, 0, 0) == 2


def test_prices_have_effective_dates() -> None:
    acme = get_acme()
    assert price_for(acme.id, FEBRUARY) == FREE
    old = make_price("1", "1", "1")
    new = make_price("2", "2", "2", FEBRUARY + timedelta(days=1))
    assert price_for(acme.id, FEBRUARY - timedelta(seconds=1)) == FREE
    assert price_for(acme.id, FEBRUARY).price_id == old.id
    assert price_for(acme.id, FEBRUARY + timedelta(days=2)).price_id == new.id
    # A request keeps the price of its admission.
    settled(opened(price=old), "finished", 1_000_000, 0, 0)
    assert get_row().cost == 1


@pytest.mark.case("C123")
@pytest.mark.case("C125")
def test_everything_may_be_said_twice() -> None:
    price = make_price("1", "1", "1")
    for _ in range(2):
        one = opened(price=price)
    assert settled(one, "finished", 10, 0, 5) == 1
    assert settled(one, "failed", 99, 0, 99) == 0
    opened(price=price)
    touch_usage({"r1": TokenCounts(50, 0, 50)})
    row = get_row()
    assert (row.status, row.completion_tokens, row.cost) == ("finished", 5, Decimal("0.000015"))
    assert settled(start("unknown"), "finished", 1, 0, 1) == 0


def test_another_tenants_row_is_not_settled() -> None:
    one = opened()
    assert settled(replace(one, tenant_id=get_initech().id), "finished", 1, 0, 1) == 0
    assert get_row().status == "open"


def test_many_at_once() -> None:
    """More than a statement takes, of two tenants, each with its own end."""
    price = make_price("1", "1", "1")
    tenants = (get_acme().id, get_initech().id)
    many = [
        start(f"r{n}", prices=book_of(price), tenant_id=tenants[n % 2], replica="http://first")
        for n in range(1200)
    ]
    open_usage(many)
    open_usage(many)
    ends = [
        UsageEnd(one, "cancelled") if n % 3 else UsageEnd(one, "finished", TokenCounts(n, 0, 1))
        for n, one in enumerate(many)
    ]
    ends[3] = UsageEnd(many[3], "failed", TokenCounts(3, 0, 2), "replica_failed", "http://second")
    assert settle_usage(ends) == 1200
    assert settle_usage(ends) == 0
    three, six = get_row("r3"), get_row("r6")
    assert (three.status, three.error_code, three.replica, three.tenant_id) == (
        "failed",
        "replica_failed",
        "http://second",
        tenants[1],
    )
    assert (three.cost, six.cost) == (Decimal("0.000005"), Decimal("0.000007"))
    assert (six.status, six.error_code, six.replica) == ("finished", "", "http://first")
    assert (get_row("r7").prompt_tokens, get_row("r7").status) == (None, "cancelled")
    assert timezone.now() - timedelta(minutes=1) < get_row("r1199").ended_at <= timezone.now()


def test_nothing_to_do() -> None:
    open_usage([])
    touch_usage({})
    assert settle_usage([]) == 0


@pytest.mark.case("C121")
@pytest.mark.case("C132")
@pytest.mark.parametrize(
    "status, counts, cost",
    [
        ("finished", (10, 0, 5), "0.000015"),
        ("cancelled", (10, 0, 5), "0.000015"),
        ("cancelled", (None, None, None), "0"),
        ("failed", (10, 0, 5), "0.000015"),
        ("failed", (10, 0, 0), "0"),
        ("failed", (None, None, None), "0"),
    ],
)
def test_what_was_delivered_is_charged(
    status: str, counts: tuple[Any, Any, Any], cost: str
) -> None:
    settled(opened(price=make_price("1", "1", "1")), status, *counts, error_code="x")
    row = get_row()
    assert row.cost == Decimal(cost)
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == counts


def test_impossible_settlements_are_refused() -> None:
    one = opened()
    for status, counts in (("open", (1, 0, 1)), ("done", (1, 0, 1)), ("finished", (1, 2, 1))):
        with pytest.raises(ValueError, match="expected"):
            settled(one, status, *counts)
    assert get_row().status == "open"


def test_the_database_holds_what_the_code_promises() -> None:
    opened()
    wrong: list[dict[str, Any]] = [
        {"prompt_tokens": 1, "cached_tokens": 2},
        {"status": "gone"},
        {"status": "finished"},
        {"ended_at": FEBRUARY},
        {"cost": Decimal(-1)},
    ]
    for fields in wrong:
        with unscoped(), pytest.raises(IntegrityError), transaction.atomic():
            UsageRecord.objects.update(**fields)


def test_a_heartbeat_of_many_rows() -> None:
    """More than a statement takes; the counts of those that have some, and of nobody else."""
    many = [opened(f"r{n}") for n in range(700)]
    settled(many[5], "finished", 1, 0, 1)
    old = timezone.now() - timedelta(hours=1)
    with unscoped():
        UsageRecord.objects.update(heartbeat_at=old)
    touch_usage({f"r{n}": TokenCounts(n, 1, 7) if n % 2 else None for n in range(1, 700)})
    touch_usage({"r7": None, "r9": TokenCounts(9, 2, 8)})
    for name, counts, is_touched in (
        ("r0", (None, None, None), False),
        ("r2", (None, None, None), True),
        ("r5", (1, 0, 1), False),
        ("r7", (7, 1, 7), True),
        ("r9", (9, 2, 8), True),
        ("r699", (699, 1, 7), True),
    ):
        row = get_row(name)
        assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == counts, name
        assert (row.heartbeat_at > old) == is_touched, name


@pytest.mark.case("C128")
def test_days_add_up_to_the_month() -> None:
    price = make_price("1", "1", "1")
    month = Period.of_month("2028-02")
    moments = [month.start, datetime(2028, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC)]
    outside = [month.start - timedelta(microseconds=1), month.end]
    for number, at in enumerate(moments + outside):
        one = opened(f"r{number}", price, started_at=at, adapter="ab"[number % 2])
        settled(one, "finished", 10, 5, 1)
    with tenant_scope(get_acme().id):
        days, whole = totals_by_day(month), totals(month)
        assert [str(row["day"]) for row in days] == ["2028-02-01", "2028-02-29"]
        assert whole["num_requests"] == sum(row["num_requests"] for row in days) == 2
        assert whole["cost"] == sum(row["cost"] for row in days) == Decimal("0.000022")
        adapters = totals_by_adapter(month)
    assert [(row["adapter"], row["prompt_tokens"]) for row in adapters] == [("a", 10), ("b", 10)]


def test_sums_are_of_one_tenant() -> None:
    opened("r1", started_at=FEBRUARY)
    opened("r2", started_at=FEBRUARY, tenant_id=get_initech().id)
    with tenant_scope(get_initech().id):
        assert totals(Period.of_month("2028-02"))["num_requests"] == 1
