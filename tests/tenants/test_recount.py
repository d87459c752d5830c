"""What the counters of a day or month are counted from."""

from datetime import timedelta

import pytest
from django.utils import timezone

from tenants.audit import Actor
from tenants.keys import create_key
from tenants.models import ApiKey, UsageRecord
from tenants.recount import PeriodLedger, ledger_of_period
from tenants.scope import unscoped
from tests.factories import get_acme, get_initech
from tests.tenants.test_metering import FEBRUARY, make_price, opened, settled

pytestmark = pytest.mark.django_db


def test_it_works() -> None:
    """Closed rows of the tenant, or of one key; those that closed lately by name."""
    price = make_price("1", "1", "1")
    acme = get_acme()
    keys = [create_key(Actor(acme.id, "system"), "ci", ["inference"]).row.id for _ in range(2)]
    for name, key, at in (
        ("a", keys[0], FEBRUARY),
        ("b", keys[1], FEBRUARY),
        ("c", keys[0], FEBRUARY + timedelta(days=1)),
    ):
        one = opened(name, price, started_at=at, key_id=key)
        settled(one, "finished", 1000, 0, 500)
    opened("open", price, started_at=FEBRUARY, key_id=keys[0])
    other = opened("other", tenant_id=get_initech().id, started_at=FEBRUARY)
    settled(other, "finished", 1000, 0, 500)
    with unscoped():
        closed = UsageRecord.objects.filter(ended_at__isnull=False)
        closed.exclude(request_id="b").update(ended_at=timezone.now() - timedelta(hours=1))
    assert ledger_of_period(acme.id, None, "2028-02") == PeriodLedger(4500, 4_500_000, ("b",))
    assert ledger_of_period(acme.id, None, "2028-02-01") == PeriodLedger(3000, 3_000_000, ("b",))
    with unscoped():
        ApiKey.objects.filter(id=keys[1]).update(family=keys[0])
    assert ledger_of_period(acme.id, keys[0], "2028-02-01").num_tokens == 3000
    with unscoped():
        ApiKey.objects.filter(id=keys[1]).update(family=None)
    assert ledger_of_period(acme.id, keys[0], "2028-02") == PeriodLedger(3000, 3_000_000, ())
    assert ledger_of_period(acme.id, keys[0], "2028-02-01") == PeriodLedger(1500, 1_500_000, ())
    assert ledger_of_period(acme.id, None, "2028-03") == PeriodLedger(0, 0, ())
    assert ledger_of_period(acme.id, None, "2028-01-31") == PeriodLedger(0, 0, ())


def test_what_is_unknown_counts_nothing() -> None:
    settled(opened("lost", started_at=FEBRUARY), "failed", None, None, None)
    assert ledger_of_period(get_acme().id, None, "2028-02") == PeriodLedger(0, 0, ("lost",))
