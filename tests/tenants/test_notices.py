"""Soft limits: what a month has used is said at 50, 80 and 100 %, once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import pytest
import pytest_asyncio
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer  # type: ignore[import-untyped]
from django.db import OperationalError
from django.test import Client

from tenants.audit import Actor
from tenants.events import group_name
from tenants.keys import create_key
from tenants.limits import Limits
from tenants.models import BudgetNotice
from tenants.notices import Mark, tell, write_down
from tenants.quota import Quota
from tenants.scope import unscoped
from tests.factories import get_acme, make_alice
from tests.tenants.test_quota import Books, Clock, caller, forget_everything, refused

Said = list[tuple[int | None, str, int, int]]


@pytest.fixture
def said() -> Said:
    return []


@pytest_asyncio.fixture
async def quota(said: Said) -> AsyncIterator[Quota]:
    async def note(mark: Mark, used: int) -> None:
        said.append((mark.family_id, mark.kind, mark.percent, used))

    quota = Quota(ledger=Books(), clock_ms=Clock(), tell=note)
    yield quota
    await quota.close()


async def use(quota: Quota, who: object, name: str, tokens: int, cost: int = 0) -> None:
    held = await quota.reserve(who, name, tokens, cost)  # type: ignore[arg-type]
    await quota.settle(held, tokens, cost)
    await asyncio.sleep(0)


async def test_it_works(quota: Quota, said: Said) -> None:
    who = caller(tokens_per_month=100)
    for number, tokens in enumerate((49, 1, 29, 1, 19)):
        await use(quota, who, f"r{number}", tokens)
    assert said == [(None, "tokens", 50, 50), (None, "tokens", 80, 80)]
    # 99 of 100: what does not fit any more says that it is spent.
    await refused(quota, who, "r9", tokens=2)
    await asyncio.sleep(0)
    assert said[2:] == [(None, "tokens", 100, 99)]


async def test_keys_and_money(quota: Quota, said: Said) -> None:
    own = Limits(monthly_budget_nanos=1000)
    who = caller(key_limits=own, tokens_per_month=100, monthly_budget_nanos=10_000)
    await use(quota, who, "a", 60, 850)
    assert sorted(said, key=str) == [(1, "money", 80, 850), (None, "tokens", 50, 60)]


async def test_a_request_too_large_for_what_is_left_says_nothing(quota: Quota, said: Said) -> None:
    """At a peer a notice of 99 % came at $0.40 of $15."""
    who = caller(monthly_budget_nanos=1000)
    await use(quota, who, "a", 1, 30)
    await refused(quota, who, "b", cost=990)
    await asyncio.sleep(0)
    assert said == []


async def test_no_limit_and_no_budget_say_nothing(quota: Quota, said: Said) -> None:
    await use(quota, caller(tokens_per_day=100), "a", 100)
    await refused(quota, caller(tokens_per_month=0), "a")
    assert said == []


@pytest.mark.django_db(transaction=True)
def test_once_over_many_gateways_and_an_emptied_store(client: Client) -> None:
    """Four gateways see it at the same time, then anew after the store was emptied: one row, one
    event. A limit that was raised is another.
    """
    acme = get_acme()
    key = create_key(Actor(acme.id, "system"), "ci", ["usage"]).row
    own = Limits(monthly_budget_nanos=1_000_000_000)
    who = replace(caller(acme.id, key.id, own), tenant_slug="acme")

    async def storm(books: Books, start: int) -> list[object]:
        layer = get_channel_layer()
        page = await layer.new_channel()
        await layer.group_add(group_name(acme.id), page)
        quotas = [Quota(ledger=books, clock_ms=Clock()) for _ in range(4)]
        await forget_everything(quotas[0], who)
        calls = [
            use(quotas[number % 4], who, f"r{start + number}", 1, 50_000_000)
            for number in range(12)
        ]
        await asyncio.gather(*calls)
        for quota in quotas:
            await quota.close()
        events = []
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                while message := await layer.receive(page):
                    events.append((message["event"], message["data"]))
        return events

    data = {"key": key.public_id, "kind": "money", "month": "2027-01", "percent": 50}
    assert async_to_sync(storm)(Books(), 0) == [("budget.reached", data)]
    assert async_to_sync(storm)(Books(), 100) == []
    with unscoped():
        rows = list(BudgetNotice.objects.values_list("api_key", "month", "kind", "percent"))
    assert rows == [(key.id, "2027-01", "money", 50)]
    client.force_login(make_alice())
    answer = client.get("/api/tenants/acme/notices/").json()
    one = answer["results"][0]
    assert (answer["count"], one["key"], one["key_name"]) == (1, key.public_id, "ci")
    assert (one["kind"], one["percent"], one["limit"]) == ("money", 50, "1")
    assert 0.5 <= float(one["used"]) <= 0.6
    mark = Mark(acme.id, key.id, "2027-01", "money", 2_000_000_000, 50)
    assert async_to_sync(tell)(mark, 1_000_000_000)
    assert not async_to_sync(tell)(mark, 1_000_000_000)
    with unscoped():
        BudgetNotice.objects.all().delete()


@pytest.mark.django_db(transaction=True)
def test_one_that_comes_late_says_nothing() -> None:
    acme = get_acme()
    mark = Mark(acme.id, None, "2027-01", "tokens", 100, 80)
    assert write_down(mark, 85)
    assert not write_down(replace(mark, percent=50), 60)
    assert write_down(replace(mark, percent=100), 100)


async def test_a_database_that_is_down_is_asked_again() -> None:
    """The notice comes with a later settlement."""
    calls: list[int] = []

    async def flaky(mark: Mark, used: int) -> None:
        calls.append(used)
        if len(calls) == 1:
            raise OperationalError("gone")

    quota = Quota(ledger=Books(), clock_ms=Clock(), tell=flaky)
    who = caller(tokens_per_month=100)
    for number in range(3):
        await use(quota, who, f"r{number}", 50 if number == 0 else 1)
    await quota.close()
    assert calls == [50, 51]
