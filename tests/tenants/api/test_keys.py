from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from tenants.audit import Actor
from tenants.auth import authenticate_key
from tenants.errors import ApiError
from tenants.keys import create_key
from tenants.limits import LIMIT_COLUMNS, NO_LIMITS, Limits
from tenants.models import Role
from tests.factories import (
    add_member,
    get_acme,
    get_initech,
    make_alice,
    make_bob,
    make_carol,
    make_oscar,
    make_user,
)

pytestmark = pytest.mark.django_db

URL = "/api/tenants/acme/keys/"


def make(client: Client, **body: Any) -> Any:
    body = {"name": "ci", "scopes": ["inference"]} | body
    return client.post(URL, body, content_type="application/json")


def as_key(*scopes: str) -> dict[str, str]:
    made = create_key(Actor(get_acme().id, "system"), "k", list(scopes))
    return {"Authorization": f"Bearer {made.raw}"}


def test_it_works(client: Client) -> None:
    client.force_login(make_alice())
    made = make(client)
    assert made.status_code == 201
    body = made.json()
    assert authenticate_key(body["secret"]).tenant_slug == "acme"
    assert set(body) == {
        "public_id",
        "name",
        "scopes",
        "allowed_models",
        "state",
        "replaces",
        "created_at",
        "last_used_at",
        "expires_at",
        "revoked_at",
        "secret",
        *LIMIT_COLUMNS,
    }
    listed = client.get(URL).json()["results"]
    assert [row["public_id"] for row in listed] == [body["public_id"]]
    assert "secret" not in listed[0]
    assert listed[0]["last_used_at"] is not None
    url = f"{URL}{body['public_id']}/"
    assert client.delete(url).status_code == 204
    assert client.delete(url).status_code == 204
    with pytest.raises(ApiError):
        authenticate_key(body["secret"])
    assert client.get(URL).json()["results"][0]["revoked_at"] is not None


def test_every_act_is_audited_once(client: Client) -> None:
    client.force_login(make_alice())
    public_id = make(client).json()["public_id"]
    for _ in range(2):
        client.delete(f"{URL}{public_id}/")
    events = client.get("/api/tenants/acme/audit/").json()["results"]
    assert [(row["action"], row["target"], row["actor"], row["role"]) for row in events] == [
        ("key.revoked", public_id, "alice", "owner"),
        ("key.created", public_id, "alice", "owner"),
    ]
    assert events[1]["after"] == {"name": "ci", "scopes": ["inference"], "expires_at": None}
    assert events[1]["ip"] == "127.0.0.1"


def refused(answer: Any, status: int, code: str) -> str:
    body = answer.json()["error"]
    assert (answer.status_code, body["code"]) == (status, code)
    message: str = body["message"]
    return message


def test_roles(client: Client) -> None:
    acme = get_acme()
    users = {"developer": make_bob(), "operator": make_oscar()}
    for role in (Role.BILLING, Role.VIEWER):
        users[role] = make_user(role)
        add_member(acme, users[role], role)
    for name, user in users.items():
        client.force_login(user)
        assert client.get(URL).status_code == 200
        if name == "developer":
            assert make(client).status_code == 201
            assert "beyond yours" in refused(
                make(client, scopes=["admin"]), 403, "permission_denied"
            )
        else:
            assert "'keys'" in refused(make(client), 403, "permission_denied")


def test_keys_that_manage_keys() -> None:
    client = Client()
    assert client.get(URL, headers=as_key("admin")).status_code == 200
    for scope in ("inference", "adapters", "usage"):
        refused(client.get(URL, headers=as_key(scope)), 403, "permission_denied")
    body = {"name": "x", "scopes": ["inference"]}
    made = client.post(URL, body, content_type="application/json", headers=as_key("admin"))
    # Having the admin scope is not having the others.
    refused(made, 403, "permission_denied")
    both = as_key("admin", "inference")
    made = client.post(URL, body, content_type="application/json", headers=both)
    assert made.status_code == 201


@pytest.mark.parametrize(
    "body, field",
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 81}, "name"),
        ({"name": None}, "name"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes.0"),
        ({"scopes": ["read"]}, "scopes.0"),
        ({"scopes": "inference"}, "scopes"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
    ],
)
def test_bad_input_is_named(client: Client, body: dict[str, Any], field: str) -> None:
    client.force_login(make_alice())
    answer = make(client, **body)
    message = refused(answer, 400, "invalid_request")
    assert field in message
    assert [detail["field"] for detail in answer.json()["error"]["details"]] == [field]


def test_a_key_that_ends(client: Client) -> None:
    client.force_login(make_alice())
    end = timezone.now() + timedelta(days=1)
    assert make(client, expires_at=end.isoformat()).json()["expires_at"] is not None


def test_strangers_and_their_keys(client: Client) -> None:
    client.force_login(make_alice())
    public_id = make(client).json()["public_id"]
    theirs = create_key(Actor(get_initech().id, "system"), "k", ["admin", "inference"])
    bearer = {"Authorization": f"Bearer {theirs.raw}"}
    client.force_login(make_carol())
    for headers in ({}, bearer):
        asker = Client() if headers else client
        refused(asker.get(URL, headers=headers), 404, "not_found")
        refused(asker.delete(f"{URL}{public_id}/", headers=headers), 404, "not_found")
        # Nor under their own tenant's name.
        other = f"/api/tenants/initech/keys/{public_id}/"
        refused(asker.delete(other, headers=headers), 404, "not_found")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_in_any_case(scheme: str) -> None:
    raw = as_key("admin")["Authorization"].split()[1]
    assert Client().get(URL, headers={"Authorization": f"{scheme} {raw}"}).status_code == 200


@pytest.mark.parametrize("value", ["Bearer", "Bearer gh-x-y", "Basic YTpi", "Token x"])
def test_other_credentials(value: str) -> None:
    answer = Client().get(URL, headers={"Authorization": value})
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_wrong_method_and_type(client: Client) -> None:
    client.force_login(make_alice())
    refused(client.put(URL), 405, "method_not_allowed")
    answer = client.post(URL, "x", content_type="text/plain")
    refused(answer, 415, "unsupported_media_type")


def test_limits_of_its_own(client: Client) -> None:
    client.force_login(make_alice())
    limits = {
        "requests_per_minute": 5,
        "tokens_per_minute": None,
        "tokens_per_month": 10**12,
        "daily_budget": "0.50",
    }
    body = make(client, **limits).json()
    shown = {name: body[name] for name in LIMIT_COLUMNS if body[name] is not None}
    expected = {"requests_per_minute": 5, "tokens_per_month": 10**12, "daily_budget": "0.5"}
    assert shown == expected
    listed = client.get(URL).json()["results"][0]
    assert listed == {name: listed[name] for name in body if name != "secret"}
    assert {name: listed[name] for name in expected} == expected
    who = authenticate_key(body["secret"])
    assert who.key_limits == Limits(
        requests_per_minute=5, tokens_per_month=10**12, daily_budget_nanos=500_000_000
    )
    event = client.get("/api/tenants/acme/audit/").json()["results"][0]
    assert event["after"].items() >= expected.items()
    assert authenticate_key(make(client).json()["secret"]).key_limits == NO_LIMITS


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("requests_per_minute", 0),
        ("tokens_per_minute", 2**31),
        ("max_concurrency", -1),
        ("tokens_per_day", "many"),
        ("tokens_per_month", 10**15 + 1),
        ("daily_budget", "0.001"),
        ("monthly_budget", "9000001"),
        ("monthly_budget", "NaN"),
    ],
)
def test_limits_that_cannot_be(client: Client, name: str, wrong: object) -> None:
    client.force_login(make_alice())
    answer = make(client, **{name: wrong})
    assert answer.status_code == 400
    assert [detail["field"] for detail in answer.json()["error"]["details"]] == [name]
