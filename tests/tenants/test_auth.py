from datetime import timedelta
from decimal import Decimal

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from tenants.audit import Actor
from tenants.auth import Principal, authenticate_key, principal_for_member
from tenants.errors import ApiError
from tenants.keys import NewKey, create_key, revoke_key
from tenants.limits import Limits
from tenants.models import ApiKey, AuditEvent, Member, Plan, Tenant
from tenants.scope import tenant_scope, unscoped
from tests.factories import get_acme, make_alice, make_bob, make_carol, make_oscar, make_plan

pytestmark = pytest.mark.django_db

SYSTEM = "system"


def make_key(tenant: Tenant, scopes: list[str] | None = None) -> NewKey:
    return create_key(Actor(tenant.id, SYSTEM), "ci", scopes or ["inference"])


def code_of(raw: str) -> tuple[int, str, str]:
    with pytest.raises(ApiError) as caught:
        authenticate_key(raw)
    return caught.value.status, caught.value.code, caught.value.message


def test_it_works() -> None:
    acme = get_acme()
    made = make_key(acme, ["inference", "usage"])
    who = authenticate_key(made.raw)
    assert who == Principal(
        tenant_id=acme.id,
        tenant_slug="acme",
        role="key",
        limits=Limits(600, 100_000, 16, 100 * 10**9),
        key_id=made.row.id,
        user_id=None,
        scopes=frozenset({"inference", "usage"}),
        cache_salt=acme.cache_salt,
        key_name=f"ci (gh-{made.row.public_id})",
        key_public_id=made.row.public_id,
        family_id=made.row.id,
    )
    assert len(acme.cache_salt) == 32


def test_the_secret_is_kept_nowhere() -> None:
    made = make_key(get_acme())
    secret = made.raw.split("-")[2]
    with unscoped():
        row = ApiKey.objects.values().get()
        events = list(AuditEvent.objects.values())
    assert secret not in repr(row)
    assert secret not in repr(events)
    assert len(row["secret_sha256"]) == 64


def test_every_bad_key_is_refused_alike() -> None:
    acme = get_acme()
    good = make_key(acme).raw
    revoked, expired = make_key(acme), make_key(acme)
    revoke_key(Actor(acme.id, SYSTEM), revoked.row.public_id)
    with tenant_scope(acme.id):
        expired.row.expires_at = timezone.now() - timedelta(seconds=1)
        expired.row.save()
    _, public_id, secret = good.split("-")
    bad = [
        "",
        "gh",
        "sk-abc",
        good[:-1],
        good + "x",
        f"gh-{public_id}-{'0' * 43}",
        f"gh-{'0' * 16}-{secret}",
        f"gh-{public_id}-{secret}\n",
        "gh-\ud800-x",
        "é" * 60,
        revoked.raw,
        expired.raw,
    ]
    assert len({code_of(raw) for raw in bad}) == 1
    assert code_of("")[:2] == (401, "invalid_api_key")
    Tenant.objects.update(is_active=False)
    assert code_of(good) == code_of("")


def test_another_keys_secret_is_no_use() -> None:
    one, other = make_key(get_acme()), make_key(get_acme())
    assert code_of(f"gh-{one.row.public_id}-{other.raw.split('-')[2]}")[0] == 401


def test_last_use_is_written_at_most_once_a_minute() -> None:
    made = make_key(get_acme())
    authenticate_key(made.raw)
    with unscoped():
        first = ApiKey.objects.get().last_used_at
        assert first is not None
        authenticate_key(made.raw)
        assert ApiKey.objects.get().last_used_at == first
        ApiKey.objects.update(last_used_at=first - timedelta(minutes=2))
        authenticate_key(made.raw)
        again = ApiKey.objects.get().last_used_at
    assert again is not None
    assert again >= first


def test_an_admin_key_may_manage_keys() -> None:
    assert "keys" in authenticate_key(make_key(get_acme(), ["admin"]).raw).scopes
    assert "keys" not in authenticate_key(make_key(get_acme(), ["inference"]).raw).scopes


def test_a_key_is_given_no_scope_beyond_its_makers() -> None:
    make_bob()
    bob = principal_of("bob")
    with pytest.raises(ApiError) as caught:
        create_key(bob, "mine", ["inference", "admin"])
    assert caught.value.status == 403
    assert create_key(bob, "mine", ["inference"]).row.created_by_id == bob.user_id


def principal_of(login: str, slug: str = "acme") -> Principal:
    with unscoped():
        member = Member.objects.select_related("user").get(user__username=login)
    return principal_for_member(member.user_id, slug)


def test_members() -> None:
    alice, bob, carol, oscar = make_alice(), make_bob(), make_carol(), make_oscar()
    assert principal_for_member(alice.id, "acme").role == "owner"
    assert principal_for_member(bob.id, "acme").role == "developer"
    assert "admin" not in principal_for_member(bob.id, "acme").scopes
    seen = principal_for_member(oscar.id, "acme")
    assert (seen.role, seen.scopes) == ("viewer", frozenset({"read"}))
    errors = []
    for user_id, slug in (
        (carol.id, "acme"),
        (alice.id, "initech"),
        (alice.id, "nowhere"),
        (0, "acme"),
    ):
        with pytest.raises(ApiError) as caught:
            principal_for_member(user_id, slug)
        errors.append((caught.value.status, caught.value.code))
    assert set(errors) == {(404, "not_found")}


def test_members_of_a_suspended_tenant() -> None:
    alice, oscar = make_alice(), make_oscar()
    Tenant.objects.update(is_active=False)
    with pytest.raises(ApiError) as caught:
        principal_for_member(alice.id, "acme")
    assert (caught.value.status, caught.value.code) == (403, "tenant_suspended")
    assert principal_for_member(oscar.id, "acme").role == "viewer"


def test_a_closed_account_is_no_member() -> None:
    alice = make_alice()
    alice.is_active = False
    alice.save()
    with pytest.raises(ApiError) as caught:
        principal_for_member(alice.id, "acme")
    assert caught.value.status == 404


def test_limits_that_are_not_set() -> None:
    plan = make_plan("open", requests_per_minute=None, monthly_budget=None)
    acme = get_acme()
    acme.plan = plan
    acme.save()
    limits = principal_for_member(make_alice(acme).id, "acme").limits
    assert limits == Limits(None, 100_000, 16, None)
    plan.monthly_budget = Decimal("0.01")
    plan.save()
    assert principal_of("alice").limits.monthly_budget_nanos == 10_000_000


@pytest.mark.parametrize("weight", [0.0, -1.0, 101.0])
def test_a_plans_weight_is_one_that_the_engine_takes(weight: float) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Plan.objects.create(slug="odd", name="odd", weight=weight)


def test_a_tenants_own_limits_only_tighten_its_plans() -> None:
    acme = get_acme()
    acme.requests_per_minute, acme.max_concurrency, acme.tokens_per_day = 100, 1000, 5
    acme.save()
    made = create_key(Actor(acme.id, "system"), "ci", ["inference"])
    with tenant_scope(acme.id):
        ApiKey.objects.update(tokens_per_month=7, daily_budget=Decimal("0.5"))
    who = authenticate_key(made.raw)
    assert who.limits == Limits(100, 100_000, 16, 100 * 10**9, tokens_per_day=5)
    assert who.key_limits == Limits(tokens_per_month=7, daily_budget_nanos=500_000_000)
    assert who.key_name == f"ci (gh-{made.row.public_id})"
