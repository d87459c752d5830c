"""What a killed process left behind: a real task on real stores."""

import asyncio
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from tenants.audit import Actor
from tenants.auth import Principal, authenticate_key
from tenants.errors import ApiError
from tenants.keys import create_key
from tenants.metering import TokenCounts, touch_usage
from tenants.models import UsageRecord
from tenants.quota import Quota
from tenants.scope import unscoped
from tenants.tasks import settle_orphans
from tests.factories import get_acme
from tests.tenants.test_metering import FEBRUARY, get_row, make_price, opened

pytestmark = pytest.mark.django_db(transaction=True)


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
    async_to_sync(reserve)(who, f"dead-{who.key_id}", 900_000_000)
    opened(f"dead-{who.key_id}", price)
    touch_usage({f"dead-{who.key_id}": TokenCounts(300, 0, 100)})
    assert settle_orphans() == 0
    with unscoped():
        UsageRecord.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=5))
    assert settle_orphans() == 1
    row = get_row(f"dead-{who.key_id}")
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
