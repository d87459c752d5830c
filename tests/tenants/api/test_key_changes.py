"""Keys that are changed and rotated, and what nobody gets by it."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from tenants.audit import Actor
from tenants.auth import Principal, authenticate_key
from tenants.errors import ApiError
from tenants.keys import create_key, rotate_key
from tenants.models import ApiKey
from tenants.scope import tenant_scope
from tests.factories import get_acme, make_alice, make_bob, make_carol

pytestmark = pytest.mark.django_db

URL = "/api/tenants/acme/keys/"
JSON = "application/json"
LIMITS = {"requests_per_minute": 10, "monthly_budget": "5.00"}
FIELDS = {"name": "ci", "scopes": ["inference"], "allowed_models": ["bot", "tiny-base"], **LIMITS}


@pytest.fixture
def alice(client: Client, settings: Any) -> Client:
    settings.BASE_MODEL_NAME = "tiny-base"
    client.force_login(make_alice())
    for name in ("bot", "other"):
        made = client.post("/api/tenants/acme/adapters/", {"name": name}, content_type=JSON)
        assert made.status_code == 201
    return client


def make(client: Client, **fields: Any) -> Any:
    answer = client.post(URL, FIELDS | fields, content_type=JSON)
    assert answer.status_code == 201, answer.content
    return answer.json()


def rotate(client: Client, public_id: str, **body: Any) -> Any:
    return client.post(f"{URL}{public_id}/rotate/", body, content_type=JSON)


def change(client: Client, public_id: str, **body: Any) -> Any:
    return client.patch(f"{URL}{public_id}/", body, content_type=JSON)


def code_of(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def listed(client: Client) -> dict[str, dict[str, Any]]:
    return {row["public_id"]: row for row in client.get(URL).json()["results"]}


def seconds_left(row: dict[str, Any]) -> float:
    end = parse_datetime(row["expires_at"])
    assert end is not None
    return (end - timezone.now()).total_seconds()


def test_it_works(alice: Client) -> None:
    old = make(alice)
    new = rotate(alice, old["public_id"]).json()
    same = ("name", "scopes", "allowed_models", *LIMITS)
    assert {name: new[name] for name in same} == {name: old[name] for name in same}
    assert (new["replaces"], new["expires_at"], new["state"]) == (old["public_id"], None, "active")
    assert new["secret"] != old["secret"]
    row = listed(alice)[old["public_id"]]
    assert row["state"] == "replaced" and 86_390 < seconds_left(row) <= 86_400
    # Both work, each with usage of its own, within limits that they share.
    first, second = authenticate_key(old["secret"]), authenticate_key(new["secret"])
    assert first.key_id != second.key_id and first.family_id == second.family_id == first.key_id
    third = rotate(alice, new["public_id"]).json()
    assert authenticate_key(third["secret"]).family_id == first.key_id


def test_the_end_of_an_overlap(alice: Client) -> None:
    old = make(alice)
    assert rotate(alice, old["public_id"], overlap_s=0).status_code == 201
    with pytest.raises(ApiError) as caught:
        authenticate_key(old["secret"])
    assert caught.value.code == "invalid_api_key"
    assert listed(alice)[old["public_id"]]["state"] == "expired"


def test_no_overlap_outlasts_the_key(alice: Client) -> None:
    end = timezone.now() + timedelta(hours=1)
    old = make(alice, expires_at=end.isoformat())
    with tenant_scope(get_acme().id):
        ApiKey.objects.update(created_at=timezone.now() - timedelta(days=89))
    new = rotate(alice, old["public_id"], overlap_s=30 * 86_400).json()
    assert 3590 < seconds_left(listed(alice)[old["public_id"]]) <= 3600
    # As long a life as the old one was given.
    assert seconds_left(new) == pytest.approx(89 * 86_400 + 3600, abs=10)


@pytest.mark.parametrize("overlap_s", [-1, 30 * 86_400 + 1, "soon", 1.5, None])
def test_an_overlap_that_cannot_be(alice: Client, overlap_s: object) -> None:
    answer = rotate(alice, make(alice)["public_id"], overlap_s=overlap_s)
    assert code_of(answer) == (400, "invalid_request")
    assert answer.json()["error"]["details"][0]["field"] == "overlap_s"


def test_what_is_over_is_over(alice: Client) -> None:
    old = make(alice)
    new = rotate(alice, old["public_id"]).json()
    again = rotate(alice, old["public_id"])
    assert code_of(again) == (409, "key_replaced")
    assert new["public_id"] in again.json()["error"]["message"]
    later = (timezone.now() + timedelta(days=60)).isoformat()
    assert code_of(change(alice, old["public_id"], expires_at=later)) == (409, "key_replaced")
    assert code_of(change(alice, old["public_id"], expires_at=None)) == (409, "key_replaced")
    alice.delete(f"{URL}{old['public_id']}/")
    for answer in (rotate(alice, old["public_id"]), change(alice, old["public_id"], name="x")):
        assert code_of(answer) == (409, "key_not_active")
    for answer in (rotate(alice, "nothere"), change(alice, "nothere", name="x")):
        assert code_of(answer) == (404, "not_found")
    # The one that came after it lives on.
    assert authenticate_key(new["secret"])


def test_a_change_holds_what_was_named(alice: Client) -> None:
    made = make(alice)
    answer = change(
        alice, made["public_id"], allowed_models=[], requests_per_minute=3, monthly_budget=None
    )
    assert answer.status_code == 200
    row = answer.json()
    assert (row["allowed_models"], row["requests_per_minute"], row["monthly_budget"]) == (
        [],
        3,
        None,
    )
    assert (row["name"], row["scopes"]) == ("ci", ["inference"])
    caller = authenticate_key(made["secret"])
    assert (caller.allowed_models, caller.key_limits.requests_per_minute) == (None, 3)
    assert change(alice, made["public_id"]).status_code == 200


def test_every_act_is_audited(alice: Client) -> None:
    public_id = make(alice)["public_id"]
    change(alice, public_id, allowed_models=["bot"])
    change(alice, public_id, allowed_models=["bot"])
    new = rotate(alice, public_id).json()
    acts = alice.get("/api/tenants/acme/audit/").json()["results"]
    rotated, changed, created = [one for one in acts if one["action"].startswith("key.")]
    assert [one["action"] for one in (rotated, changed, created)] == [
        "key.rotated",
        "key.changed",
        "key.created",
    ]
    assert {one["target"] for one in (rotated, changed, created)} == {public_id}
    assert changed["before"]["allowed_models"] == ["bot", "tiny-base"]
    assert changed["after"]["allowed_models"] == ["bot"]
    assert rotated["before"]["expires_at"] is None
    assert rotated["after"]["replaced_by"] == new["public_id"]
    assert new["secret"].split("-")[2] not in str(rotated)


@pytest.mark.parametrize(
    "names", [["bot@3"], [""], ["a b"], ["\u0000"], "bot", [None], ["x"] * 101]
)
def test_names_that_no_model_has(alice: Client, names: object) -> None:
    answer = alice.post(URL, FIELDS | {"allowed_models": names}, content_type=JSON)
    assert code_of(answer) == (400, "invalid_request")
    assert answer.json()["error"]["details"][0]["field"].startswith("allowed_models")


def test_names_that_no_model_of_the_tenant_has(alice: Client) -> None:
    """A key of a name that is misspelt, or not its own, would reach nothing and not say why."""
    carol = Client()
    carol.force_login(make_carol())
    url = "/api/tenants/initech/adapters/"
    assert carol.post(url, {"name": "theirs"}, content_type=JSON).status_code == 201
    made = make(alice)
    for names in (["bto", "bot", "theirs"], ["Tiny-Base", "bto", "theirs"]):
        unknown = [name for name in names if name != "bot"]
        for answer in (
            alice.post(URL, FIELDS | {"allowed_models": names}, content_type=JSON),
            change(alice, made["public_id"], allowed_models=names),
        ):
            assert code_of(answer) == (400, "invalid_request")
            [detail] = answer.json()["error"]["details"]
            assert (detail["field"], detail["code"]) == ("allowed_models", "unknown_model")
            assert f"is called {', '.join(sorted(unknown))}." in detail["message"]
    assert listed(alice)[made["public_id"]]["allowed_models"] == ["bot", "tiny-base"]


def test_a_model_that_went_may_stay_named(alice: Client) -> None:
    """A page sends the whole list again when another field is changed."""
    made = make(alice, allowed_models=["bot", "other"])
    assert alice.delete("/api/tenants/acme/adapters/other/").status_code == 204
    public_id = made["public_id"]
    answer = change(alice, public_id, name="new", allowed_models=["bot", "other"])
    assert (answer.status_code, answer.json()["name"]) == (200, "new")
    assert rotate(alice, public_id).json()["allowed_models"] == ["bot", "other"]
    assert change(alice, public_id, allowed_models=["bot"]).status_code == 200
    assert code_of(change(alice, public_id, allowed_models=["other"])) == (400, "invalid_request")


def refused(answer: Any, what: str) -> None:
    assert code_of(answer) == (403, "permission_denied")
    assert what in answer.json()["error"]["message"]


def test_nobody_gets_more_by_another_key(alice: Client) -> None:
    """By making one, by changing one, by rotating one."""
    everything = make(
        alice, scopes=["inference", "admin"], allowed_models=[], **dict.fromkeys(LIMITS)
    )
    bob = Client()
    bob.force_login(make_bob())
    refused(rotate(bob, everything["public_id"]), "scopes beyond yours")
    refused(change(bob, everything["public_id"], name="mine"), "scopes beyond yours")
    few = make(alice, scopes=["inference", "admin"])
    client = Client(headers={"Authorization": f"Bearer {few['secret']}"})
    for fields, what in (
        ({"allowed_models": []}, "models beyond yours"),
        ({"allowed_models": ["bot", "other"]}, "models beyond yours"),
        ({"requests_per_minute": None}, "limits beyond"),
        ({"requests_per_minute": 11}, "limits beyond"),
        ({"scopes": ["usage"]}, "scopes beyond yours"),
    ):
        refused(client.post(URL, FIELDS | fields, content_type=JSON), what)
        refused(change(client, few["public_id"], **fields), what)
    refused(rotate(client, everything["public_id"]), "models beyond yours")
    # Its own, and less than its own, it may.
    less = FIELDS | {"allowed_models": ["bot"], "requests_per_minute": 1}
    assert client.post(URL, less, content_type=JSON).status_code == 201
    assert rotate(client, few["public_id"]).status_code == 201


def test_two_rotations_of_one_key() -> None:
    """The second finds the first's, however it was asked."""
    actor = Actor(get_acme().id, "system")
    public_id = create_key(actor, "k", ["inference"]).row.public_id
    made = rotate_key(actor, public_id)
    with pytest.raises(ApiError) as caught:
        rotate_key(actor, public_id)
    assert caught.value.code == "key_replaced"
    with tenant_scope(actor.tenant_id):
        assert ApiKey.objects.count() == 2
    caller: Principal = authenticate_key(made.raw)
    assert caller.key_id == made.row.id
