"""What is kept is proven by the database's change log: what is changed by hand, past every hook and
without a push, acts on every web process within CACHE_TTL_S.
"""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
import requests
from django.db import OperationalError
from django.utils import timezone

from gateway import invalidation
from gateway.settings import CACHE_TTL_S
from tenants.changes import Changes, Position
from tenants.models import ApiKey, Price
from tenants.scope import tenant_scope
from tests.gateway.conftest import Stack
from tests.gateway.live import Web, wait_for
from tests.gateway.pair import Pair
from tests.gateway.test_revocation import frozen_store, no_channels


def by_hand(stack: Stack, statement: str) -> float:
    """As psql or sqlite3 does it. When it was committed, by the monotonic clock."""
    url = stack.database_url
    if url.startswith("postgres"):
        with psycopg.connect(url) as connection:
            connection.execute(statement.encode())
    else:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=20)) as connection:
            connection.execute(statement)
            connection.commit()
    return time.monotonic()


def listed(web: Web, raw: str) -> int:
    headers = {"authorization": f"Bearer {raw}"}
    return requests.get(f"{web.url}/v1/models", headers=headers, timeout=30).status_code


def chat(web: Web, raw: str, model: str = "tiny-base") -> requests.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
    headers = {"authorization": f"Bearer {raw}"}
    url = f"{web.url}/v1/chat/completions"
    return requests.post(url, json=body, headers=headers, timeout=30)


def acted_s(committed: float, is_so: Callable[[], bool]) -> float:
    """Seconds from the commit to the last look that began before the change was seen."""
    last = committed
    while True:
        began = time.monotonic()
        if is_so():
            return last - committed
        last = began
        assert last - committed < 10


@pytest.mark.case("C117")
@pytest.mark.parametrize("cut", [no_channels, frozen_store])
def test_a_revocation_by_hand(pair: Pair, stack: Stack, cut: Callable[[Pair], Any]) -> None:
    customer = stack.make_customer()
    raw = customer.api_key
    for web in (pair.here, pair.there):
        assert [listed(web, raw) for _ in range(3)] == [200] * 3
    with cut(pair):
        # In use all the while, and proven.
        for _ in range(15):
            time.sleep(0.1)
            assert [listed(web, raw) for web in (pair.here, pair.there)] == [200] * 2
        committed = by_hand(
            stack,
            "UPDATE tenants_apikey SET revoked_at = CURRENT_TIMESTAMP "
            f"WHERE tenant_id = {customer.tenant.id}",
        )
        took = [
            acted_s(committed, lambda web=web: listed(web, raw) == 401)  # type: ignore[misc]
            for web in (pair.here, pair.there)
        ]
    print(f"last accepted {[round(1000 * one) for one in took]} ms after the commit")
    assert max(took) < CACHE_TTL_S


CHANGES = {
    "a key's limit": "UPDATE tenants_apikey SET requests_per_minute = 1 WHERE tenant_id = {tenant}",
    "a tenant's limit": "UPDATE tenants_tenant SET requests_per_minute = 1 WHERE id = {tenant}",
    "a plan's limit": "UPDATE tenants_plan SET requests_per_minute = 1 WHERE id = {plan}",
    "suspension": "UPDATE tenants_tenant SET is_active = false WHERE id = {tenant}",
    "a model's name": "UPDATE adapters_adapter SET name = 'renamed' WHERE tenant_id = {tenant}",
    "a retired version": (
        "UPDATE adapters_adapterversion SET state = 'retired' WHERE tenant_id = {tenant}"
    ),
}
STATUSES = {"suspension": 401, "a model's name": 404, "a retired version": 404}


@pytest.mark.case("C117")
@pytest.mark.parametrize("what", CHANGES)
def test_any_change_by_hand(pair: Pair, stack: Stack, what: str) -> None:
    customer = stack.make_customer()
    stack.activate(customer, "bot")
    ids = {"tenant": customer.tenant.id, "plan": customer.tenant.plan_id}
    raw = customer.api_key
    with no_channels(pair):
        for web in (pair.here, pair.there):
            wait_for("the model", lambda web=web: chat(web, raw, "bot").status_code == 200)  # type: ignore[misc]
        committed = by_hand(stack, CHANGES[what].format(**ids))
        for web in (pair.here, pair.there):
            status = STATUSES.get(what, 429)
            took = acted_s(committed, lambda web=web: chat(web, raw, "bot").status_code == status)  # type: ignore[misc]  # noqa: B023
            print(f"{what}: the last as before {1000 * took:.0f} ms after the commit")
            assert took < CACHE_TTL_S


def test_what_is_used_all_the_time_is_looked_up_no_more(pair: Pair, stack: Stack) -> None:
    """Or its key's use would be written again."""
    customer = stack.make_customer()
    # The log has told of its own rows by then.
    for _ in range(15):
        assert listed(pair.there, customer.api_key) == 200
        time.sleep(0.1)
    with tenant_scope(customer.tenant.id):
        key = ApiKey.objects.get()
        assert key.last_used_at is not None
        long_ago = key.last_used_at - timedelta(hours=1)
        ApiKey.objects.update(last_used_at=long_ago)
    for _ in range(20):
        assert listed(pair.there, customer.api_key) == 200
        time.sleep(0.1)
    with tenant_scope(customer.tenant.id):
        assert ApiKey.objects.get().last_used_at == long_ago


def test_a_price_begins_at_its_moment(stack: Stack) -> None:
    """Each request is billed by the price of its own moment, though nothing changes then."""
    customer = stack.make_customer()
    plan = customer.tenant.plan
    begins = timezone.now() + timedelta(seconds=2)
    cost = dict.fromkeys(("prompt_per_million", "cached_per_million"), Decimal(1))
    new = Price.objects.create(
        plan=plan, **cost, completion_per_million=Decimal(99), effective_from=begins
    )
    old = Price.objects.get(plan=plan, effective_from__lt=begins)
    num = 0
    while timezone.now() < begins + timedelta(seconds=0.5):
        assert chat(stack.web, customer.api_key).status_code == 200
        num += 1
    rows = customer.usage(num)
    assert {row.price_id for row in rows} == {old.id, new.id}
    for row in rows:
        # A request may begin right before the moment, and be priced right after it.
        if abs(row.started_at - begins) > timedelta(seconds=0.05):
            assert row.price_id == (old.id if row.started_at < begins else new.id)


class Log:
    """What a poll is answered, in turn."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Position | None] = []

    async def read(self, _: Callable[..., Any], *args: Any) -> Any:
        self.asked.append(args[0])
        if not self.answers:
            raise OperationalError("gone")
        return self.answers.pop(0)


async def test_polls_go_on_from_each_other_and_begin_anew_after_a_failure() -> None:
    places = [Position(number, frozenset(), 0.0) for number in range(3)]
    told = [frozenset({None}), frozenset[int | None](), frozenset[int | None]()]
    log = Log(*map(Changes, places, told))
    proofs: list[tuple[float, frozenset[int | None]]] = []
    began = time.monotonic()
    with pytest.raises(OperationalError):
        await invalidation.poll(log.read, lambda *proof: proofs.append(proof), 0.05)
    assert log.asked == [None, *places]
    assert [ids for _, ids in proofs] == told
    # Each from its begin, a period apart; the first one's answer let the push go first.
    moments = [at - began for at, _ in proofs]
    assert moments == pytest.approx([0, invalidation.HEAD_START_S, moments[1] + 0.05], abs=0.04)
