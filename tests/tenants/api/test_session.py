import re
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from tenants import guessing
from tenants.models import Tenant
from tests.factories import PASSWORD, make_alice, make_carol, make_oscar

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_guesses")]


def sign_in(client: Client, login: str = "alice", password: str = PASSWORD, **headers: str) -> Any:
    body = {"login": login, "password": password}
    return client.post("/api/session", body, content_type="application/json", headers=headers)


def test_it_works(client: Client) -> None:
    make_alice()
    anonymous = client.get("/api/session")
    assert anonymous.json() == {
        "user": None,
        "memberships": [],
        "base_model": settings.BASE_MODEL_NAME,
    }
    assert "csrftoken" in anonymous.cookies
    answer = sign_in(client)
    assert answer.status_code == 200
    assert answer.json() == client.get("/api/session").json()
    assert answer.json()["user"] == {"login": "alice", "is_operator": False}
    assert answer.json()["memberships"] == [
        {"tenant": {"slug": "acme", "name": "Acme"}, "role": "owner"}
    ]
    assert client.delete("/api/session").status_code == 204
    assert client.get("/api/session").json()["user"] is None
    assert client.delete("/api/session").status_code == 204


def test_each_sees_his_own(client: Client) -> None:
    make_alice(), make_carol(), make_oscar()
    sign_in(client, "carol")
    assert [m["tenant"]["slug"] for m in client.get("/api/session").json()["memberships"]] == [
        "initech"
    ]
    sign_in(client, "oscar")
    session = client.get("/api/session").json()
    assert session["user"] == {"login": "oscar", "is_operator": True}
    assert session["memberships"] == []


def test_a_suspended_tenant_is_no_membership(client: Client) -> None:
    make_alice()
    Tenant.objects.update(is_active=False)
    assert sign_in(client).json()["memberships"] == []


def test_failures_tell_nothing_about_the_login(client: Client) -> None:
    alice = make_alice()
    unknown = sign_in(client, "nobody", "x")
    wrong = sign_in(client, "alice", "x")
    alice.is_active = False
    alice.save()
    closed = sign_in(client)
    assert unknown.status_code == wrong.status_code == closed.status_code == 401
    assert unknown.content == wrong.content == closed.content
    assert wrong.json()["error"]["code"] == "invalid_login"


@pytest.mark.parametrize("method", ["post", "delete"])
def test_csrf(method: str) -> None:
    """Signing in is protected too; the token comes with GET."""
    make_alice()
    client = Client(enforce_csrf_checks=True)
    assert sign_in(client).status_code == 403
    assert sign_in(client).json()["error"]["code"] == "permission_denied"
    token = client.get("/api/session").cookies["csrftoken"].value
    assert sign_in(client, **{"X-CSRFToken": token}).status_code == 200
    token = client.cookies["csrftoken"].value
    assert client.delete("/api/session").status_code == 403
    assert client.delete("/api/session", headers={"X-CSRFToken": token}).status_code == 204


def test_guessing_is_slowed_down(client: Client) -> None:
    make_alice(), make_carol()
    for _ in range(guessing.MAX_FAILURES["pair"]):
        assert sign_in(client, "alice", "guess").status_code == 401
    refused = sign_in(client)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert 0 < int(refused.headers["Retry-After"]) <= guessing.WINDOW_S
    assert sign_in(client, "carol").status_code == 200


def test_guessing_over_many_logins(client: Client) -> None:
    make_alice()
    for number in range(guessing.MAX_FAILURES["address"]):
        sign_in(client, f"user{number}", "guess")
    assert sign_in(client).status_code == 429


def test_success_costs_no_attempt(client: Client) -> None:
    make_alice()
    for _ in range(guessing.MAX_FAILURES["pair"] + 2):
        assert sign_in(client).status_code == 200


@pytest.mark.parametrize(
    "body", ["", "{", "[]", '"x"', "{}", '{"login": 1}', '{"login": "a", "password": null}']
)
def test_bad_bodies(client: Client, body: str) -> None:
    answer = client.post("/api/session", body, content_type="application/json")
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"code", "message", "details"}


def test_the_session_changes_at_sign_in(client: Client) -> None:
    """A session id planted before is worth nothing after."""
    make_alice(), make_carol()
    sign_in(client)
    first = client.cookies["sessionid"].value
    sign_in(client, "carol")
    assert client.cookies["sessionid"].value != first


def test_cookies_are_not_for_scripts(client: Client) -> None:
    make_alice()
    cookie = sign_in(client).cookies["sessionid"]
    assert cookie["httponly"]
    assert re.fullmatch("lax", cookie["samesite"], re.IGNORECASE)
