"""The operator's pages open, hold no secret, and what is changed there is audited."""

import pytest
from django.apps import apps
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone

from tenants import guessing
from tenants.audit import Actor
from tenants.auth import authenticate_key
from tenants.errors import ApiError
from tenants.keys import create_key
from tenants.models import AuditEvent, Member, Tenant, User
from tenants.scope import unscoped
from tests.factories import PASSWORD, get_acme, make_alice, make_bob, make_oscar
from tests.tenants.test_metering import make_price, opened

pytestmark = pytest.mark.django_db

MODELS = ["user", "plan", "price", "tenant", "member", "apikey", "usagerecord", "auditevent"]


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(make_oscar())
    return client


@pytest.mark.parametrize("model", MODELS)
def test_pages(operator: Client, model: str) -> None:
    make_alice()
    made = create_key(Actor(get_acme().id, "system"), "ci", ["inference"])
    opened(price=make_price("1", "1", "1"))
    listed = operator.get(f"/admin/tenants/{model}/", {"q": "a"} if model != "plan" else {})
    assert listed.status_code == 200
    with unscoped():
        row = apps.get_model("tenants", model)._default_manager.first()
        assert row is not None
    page = operator.get(f"/admin/tenants/{model}/{row.pk}/change/")
    assert page.status_code == 200
    for secret in (made.row.secret_sha256, get_acme().cache_salt):
        assert secret not in listed.content.decode()
        assert secret not in page.content.decode()


def test_tenants_are_not_operators(client: Client) -> None:
    client.force_login(make_alice())
    assert client.get("/admin/tenants/tenant/").status_code == 302


def test_suspending_a_tenant(operator: Client) -> None:
    acme = get_acme()
    key = create_key(Actor(acme.id, "system"), "ci", ["inference"])
    url = f"/admin/tenants/tenant/{acme.id}/change/"
    assert operator.post(url, {"name": "Acme", "plan": acme.plan_id}).status_code == 302
    assert not Tenant.objects.get(slug="acme").is_active
    with pytest.raises(ApiError):
        authenticate_key(key.raw)
    with unscoped():
        event = AuditEvent.objects.get(action="tenant.changed")
    assert (event.actor, event.role) == ("oscar", "operator")
    assert (event.before, event.after) == ({"is_active": "True"}, {"is_active": "False"})


def test_members(operator: Client) -> None:
    acme, bob = get_acme(), make_bob()
    with unscoped():
        member = Member.objects.get(user=bob)
    url = f"/admin/tenants/member/{member.id}/"
    form = {"tenant": acme.id, "user": bob.id, "role": "viewer"}
    assert operator.post(f"{url}change/", form).status_code == 302
    with unscoped():
        assert Member.objects.get(user=bob).role == "viewer"
    assert operator.post(f"{url}delete/", {"post": "yes"}).status_code == 302
    with unscoped():
        assert not Member.objects.filter(user=bob).exists()
        actions = AuditEvent.objects.order_by("id").values_list("action", flat=True)
        assert list(actions) == ["member.changed", "member.removed"]


def test_a_plans_limits_are_told_to_its_tenants(operator: Client) -> None:
    plan = get_acme().plan
    form = {
        "name": "standard",
        "slug": "standard",
        "requests_per_minute": 1,
        "max_rank": 8,
        "max_adapters": 1,
        "max_versions": 1,
        "max_upload_bytes": 1,
        "max_upload_parts": 1,
        "max_open_uploads": 1,
        "max_stored_bytes": 1,
        "weight": 2,
    }
    url = f"/admin/tenants/plan/{plan.id}/change/"
    for wrong in ({"monthly_budget": "9000001"}, {"weight": 0}, {"weight": "nan"}):
        assert operator.post(url, form | wrong).status_code == 200
    assert operator.post(url, form).status_code == 302
    plan.refresh_from_db()
    assert (plan.requests_per_minute, plan.monthly_budget, plan.weight) == (1, None, 2)
    with unscoped():
        assert AuditEvent.objects.get(action="plan.changed").target == "standard"


def test_every_door_of_a_row_opens_or_is_closed(operator: Client) -> None:
    """Pages to delete things look for what hangs on them, in every tenant."""
    make_alice()
    create_key(Actor(get_acme().id, "system"), "ci", ["inference"])
    opened(price=make_price("1", "1", "1"))
    for model in MODELS:
        with unscoped():
            row = apps.get_model("tenants", model)._default_manager.first()
            assert row is not None
        for page in ("history", "delete"):
            status = operator.get(f"/admin/tenants/{model}/{row.pk}/{page}/").status_code
            assert status in ((200,) if page == "history" else (200, 403)), (model, page)
    alice = User.objects.get(username="alice")
    assert operator.get(f"/admin/tenants/user/{alice.id}/delete/").status_code == 403


def sign_in(client: Client, password: str) -> HttpResponse:
    form = {"username": "oscar", "password": password, "next": "/admin/"}
    return client.post("/admin/login/", form)  # type: ignore[return-value]


def test_signing_in(client: Client, no_guesses: None) -> None:
    make_oscar()
    assert "The login or the password is wrong." in sign_in(client, "wrong").content.decode()
    assert sign_in(client, PASSWORD).status_code == 302
    assert client.get("/admin/tenants/tenant/").status_code == 200


def test_guessing_is_slowed_down_at_this_door_too(client: Client, no_guesses: None) -> None:
    make_oscar()
    for _ in range(guessing.MAX_FAILURES["pair"]):
        sign_in(client, "wrong")
    refused = sign_in(client, PASSWORD)
    assert "Too many failed attempts" in refused.content.decode()
    # One brake for both: nor does the application's door open meanwhile.
    answer = client.post("/api/session", {"login": "oscar", "password": PASSWORD})
    assert answer.status_code == 429


def test_a_plan_without_a_price_says_that_it_is_free(operator: Client) -> None:
    get_acme()
    assert "none: free" in operator.get("/admin/tenants/plan/").content.decode()
    make_price("1.5", "0.1", "2", timezone.now())
    assert "1.5, 0.1, 2" in operator.get("/admin/tenants/plan/").content.decode()
