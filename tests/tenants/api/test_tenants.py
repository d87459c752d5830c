from datetime import UTC
from decimal import Decimal

import pytest
from django.test import Client
from django.utils import timezone

from tenants.audit import Actor
from tenants.keys import create_key
from tenants.models import Tenant
from tests.factories import get_acme, make_alice, make_bob, make_carol, make_oscar
from tests.tenants.test_metering import make_price, opened, settled

pytestmark = pytest.mark.django_db


def slugs(client: Client) -> list[str]:
    return [row["slug"] for row in client.get("/api/tenants/").json()["results"]]


def test_it_works(client: Client) -> None:
    client.force_login(make_alice())
    make_carol()
    assert client.get("/api/tenants/").json() == {
        "count": 1,
        "next": None,
        "previous": None,
        "results": [{"slug": "acme", "name": "Acme", "plan": "standard"}],
    }


def test_a_stray_format_in_the_query_changes_nothing(client: Client) -> None:
    client.force_login(make_alice())
    assert client.get("/api/tenants/?format=xml").json() == client.get("/api/tenants/").json()


def test_detail(client: Client) -> None:
    client.force_login(make_bob())
    settled(opened(price=make_price("1", "1", "1")), "finished", 10, 4, 5)
    body = client.get("/api/tenants/acme/").json()
    assert body["usage_today"] == body["usage_this_month"]
    assert body["plan"] == {
        "name": "standard",
        "slug": "standard",
        "requests_per_minute": 600,
        "tokens_per_minute": 100_000,
        "max_concurrency": 16,
        "tokens_per_day": None,
        "tokens_per_month": None,
        "daily_budget": None,
        "monthly_budget": "100",
        "max_rank": 64,
        "max_adapters": 100,
        "max_versions": 100,
        "max_upload_bytes": 2**30,
        "max_upload_parts": 1000,
        "max_open_uploads": 10,
        "max_stored_bytes": 100 * 2**30,
    }
    assert body["role"] == "developer"
    assert body["permissions"] == ["adapters", "inference", "keys", "read", "usage"]
    assert body["usage_this_month"] == {
        "num_requests": 1,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 5,
        "cost": "0.000015",
    }
    assert "cache_salt" not in body


def test_a_day_and_its_month_are_summed_apart(client: Client) -> None:
    client.force_login(make_bob())
    noon = timezone.now().astimezone(UTC).replace(hour=12)
    # Of the same month, and never today.
    another = noon.replace(day=2 if noon.day == 1 else 1)
    settled(opened(price=make_price("1", "1", "1"), started_at=another), "finished", 10, 4, 5)
    body = client.get("/api/tenants/acme/").json()
    assert body["usage_this_month"]["completion_tokens"] == 5
    assert body["usage_today"]["num_requests"] == 0


def test_who_sees_which(client: Client) -> None:
    alice, carol, oscar = make_alice(), make_carol(), make_oscar()
    for user, seen in ((alice, ["acme"]), (carol, ["initech"]), (oscar, ["acme", "initech"])):
        client.force_login(user)
        assert slugs(client) == seen
    assert client.get("/api/tenants/acme/").json()["role"] == "viewer"
    made = create_key(Actor(get_acme().id, "system"), "ci", ["usage"])
    bearer = {"Authorization": f"Bearer {made.raw}"}
    answer = Client().get("/api/tenants/", headers=bearer)
    assert [row["slug"] for row in answer.json()["results"]] == ["acme"]


def test_a_suspended_tenant(client: Client) -> None:
    client.force_login(make_alice())
    Tenant.objects.update(is_active=False)
    assert slugs(client) == []
    answer = client.get("/api/tenants/acme/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "tenant_suspended")


def test_no_limits(client: Client) -> None:
    client.force_login(make_alice())
    plan = get_acme().plan
    plan.monthly_budget, plan.requests_per_minute = None, None
    plan.save()
    body = client.get("/api/tenants/acme/").json()["plan"]
    assert body["monthly_budget"] is None
    assert body["requests_per_minute"] is None
    plan.monthly_budget = Decimal("0.50")
    plan.save()
    assert client.get("/api/tenants/acme/").json()["plan"]["monthly_budget"] == "0.5"


def test_the_limits_that_hold_are_the_tighter_ones(client: Client) -> None:
    client.force_login(make_alice())
    acme = get_acme()
    acme.requests_per_minute, acme.monthly_budget, acme.tokens_per_day = 1000, Decimal("2.50"), 7
    acme.save()
    body = client.get("/api/tenants/acme/").json()
    assert body["plan"]["monthly_budget"] == "100"
    assert body["limits"] == {
        "requests_per_minute": 600,
        "tokens_per_minute": 100_000,
        "max_concurrency": 16,
        "tokens_per_day": 7,
        "tokens_per_month": None,
        "daily_budget": None,
        "monthly_budget": "2.5",
    }


def test_anonymous(client: Client) -> None:
    answer = client.get("/api/tenants/")
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "not_authenticated"
