"""The serving profile: its rules, its route, and what it leaves alone."""

import json
from typing import Any

import pytest
from django.test import Client

from adapters.access import resolve
from adapters.models import Adapter, AdapterVersion, VersionState
from adapters.profile import ServingProfile
from adapters.publish import upload
from tenants import events
from tenants.auth import Principal
from tenants.models import AuditEvent, Role
from tenants.scope import tenant_scope
from tests import factories
from tests.adapters.conftest import put_in_quarantine
from tests.tiny import CHAT_TEMPLATE

URL = "/api/tenants/acme/adapters/support-bot/versions/1/profile/"
NOTHING = dict.fromkeys(
    (
        *(
            "system_prompt",
            "chat_template",
            "stop",
            "max_tokens",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
        ),
        *("repetition_penalty", "frequency_penalty", "presence_penalty", "seed"),
    )
)
LOOP = "{% for a in range(99999) %}"
ENDLESS = LOOP * 3 + "{% endfor %}" * 3
PROFILE = {"system_prompt": "Answer as a clerk.", "stop": ["\n\n", "User:"], "temperature": 0.2}


def put(client: Client, body: object, url: str = URL) -> Any:
    return client.put(url, json.dumps(body), content_type="application/json")


@pytest.fixture
def version(alice: Principal) -> AdapterVersion:
    """An active one, without bytes."""
    with tenant_scope(alice.tenant_id):
        adapter = Adapter.objects.create(tenant_id=alice.tenant_id, name="support-bot")
        adapter.active_version = AdapterVersion.objects.create(
            tenant_id=alice.tenant_id,
            adapter=adapter,
            number=1,
            state=VersionState.ACTIVE,
            digest="ab" * 32,
        )
        adapter.last_number = 1
        adapter.save()
        return adapter.active_version


def test_it_works(client: Client, alice: Principal, version: AdapterVersion) -> None:
    assert client.get(URL).json() == NOTHING
    response = put(client, PROFILE | {"max_tokens": 64, "top_k": None})
    assert response.status_code == 200, response.json()
    assert response.json() == client.get(URL).json() == NOTHING | PROFILE | {"max_tokens": 64}
    resolved = resolve(alice, "support-bot")
    sampling = {"temperature": 0.2}
    stop = ("\n\n", "User:")
    assert resolved.profile == ServingProfile("Answer as a clerk.", None, stop, 64, sampling)
    assert resolve(alice, "support-bot@1").profile == resolved.profile
    assert resolved.digest == version.digest
    assert client.delete(URL).status_code == 204
    assert client.get(URL).json() == NOTHING
    assert resolve(alice, "support-bot").profile is None


def test_a_change_is_an_audit_row_and_an_event(
    client: Client,
    alice: Principal,
    version: AdapterVersion,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: Any,
) -> None:
    told: list[events.Sending] = []
    monkeypatch.setattr(events.Sending, "send", lambda sending: told.append(sending))
    with django_capture_on_commit_callbacks(execute=True):
        put(client, PROFILE)
        # The same again is no change.
        put(client, PROFILE)
    with django_capture_on_commit_callbacks(execute=True):
        put(client, {"seed": 7})
        client.delete(URL)
    with tenant_scope(alice.tenant_id):
        rows = AuditEvent.objects.filter(action="version.profile_changed").order_by("id")
        seen = [(row.target, row.before, row.after) for row in rows]
    assert seen == [
        ("support-bot@1", None, PROFILE),
        ("support-bot@1", PROFILE, {"seed": 7}),
        ("support-bot@1", {"seed": 7}, None),
    ]
    data = {"adapter": "support-bot", "number": 1}
    assert {(one.event, one.data) for one in told} == {
        ("profile.changed", json.dumps(data, sort_keys=True))
    }
    assert "profile.changed" not in events.NOT_INVALIDATING


@pytest.mark.parametrize(
    ("body", "field", "expected"),
    [
        ({"temperature": "hot"}, "temperature", "a number from 0 to 2"),
        ({"temperature": True}, "temperature", "a number from 0 to 2"),
        ({"temperature": 2.1}, "temperature", "a number from 0 to 2"),
        ({"top_p": -1}, "top_p", "a number from 0 to 1"),
        ({"top_k": 1.5}, "top_k", "an integer from 1 to 1000000"),
        ({"min_p": []}, "min_p", "a number from 0 to 1"),
        ({"repetition_penalty": 0}, "repetition_penalty", "a number from 0.01 to 10"),
        ({"max_tokens": 0}, "max_tokens", "an integer from 1 to 1000000"),
        ({"seed": 2**53}, "seed", "an integer from 0 to"),
        ({"stop": "x"}, "stop", "an array of 1 to 4 texts of 1 to 1024 characters"),
        ({"stop": []}, "stop", "an array of 1 to 4 texts"),
        ({"stop": ["a"] * 5}, "stop", "an array of 1 to 4 texts"),
        ({"stop": [""]}, "stop", "an array of 1 to 4 texts"),
        ({"system_prompt": ""}, "system_prompt", "text of 1 to 32768 characters"),
        ({"system_prompt": "a\0b"}, "system_prompt", "text of 1 to 32768 characters"),
        ({"system_prompt": "\ud800"}, "system_prompt", "text of 1 to 32768 characters"),
        ({"temprature": 1}, "temprature", "one of system_prompt, chat_template, stop, max_tokens"),
        ([], "", "an object"),
    ],
)
def test_what_is_wrong_is_named(
    client: Client, version: AdapterVersion, body: object, field: str, expected: str
) -> None:
    response = put(client, body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "invalid_profile" and expected in error["message"]
    assert [one["field"] for one in error["details"]] == [field]
    assert client.get(URL).json() == NOTHING


def test_all_that_is_wrong_is_said_at_once(client: Client, version: AdapterVersion) -> None:
    error = put(client, {"top_p": 3, "stop": 1, "x": 1, "seed": 5}).json()["error"]
    assert {one["field"] for one in error["details"]} == {"top_p", "stop", "x"}


def test_a_new_version_starts_with_the_active_ones(
    scope: Principal, client: Client, version: AdapterVersion
) -> None:
    put(client, PROFILE)
    second = upload(scope, "support-bot", put_in_quarantine({}))
    assert second.profile == PROFILE
    # A copy: each goes on by itself.
    client.delete(URL)
    second.refresh_from_db()
    assert second.profile == PROFILE
    assert upload(scope, "other-bot", put_in_quarantine({})).profile == {}


def test_who_may_not(client: Client, alice: Principal, version: AdapterVersion) -> None:
    viewer = factories.make_user("victor")
    factories.add_member(factories.get_acme(), viewer, Role.VIEWER)
    theirs = Client()
    theirs.force_login(viewer)
    assert theirs.get(URL).status_code == 200
    assert put(theirs, PROFILE).status_code == 403
    assert theirs.delete(URL).status_code == 403
    assert put(client, PROFILE, URL.replace("/1/", "/9/")).status_code == 404


def test_a_chat_template_is_tried(
    client: Client, alice: Principal, version: AdapterVersion
) -> None:
    body = {"chat_template": CHAT_TEMPLATE, "system_prompt": "Be brief."}
    assert put(client, body).status_code == 200
    profile = resolve(alice, "support-bot").profile
    assert profile and profile.chat_template == CHAT_TEMPLATE


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for", "chat template: line 1"),
        ("Hello", "one turn: what the user says does not reach the model"),
        ("{{ messages[0].content }}", "two turns: what the user says does not reach the model"),
        ("{{ raise_exception('never') }}", "cannot render the messages: never"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        (
            "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}",
            "m",
        ),
    ],
)
def test_a_chat_template_that_fails_is_refused(
    client: Client, version: AdapterVersion, source: str, reason: str
) -> None:
    response = put(client, {"chat_template": source})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_profile"), error
    assert reason in error["message"]
    assert {one["field"] for one in error["details"]} == {"chat_template"}
    assert client.get(URL).json() == NOTHING


def test_a_template_may_refuse_a_system_prompt(client: Client, version: AdapterVersion) -> None:
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    source += "{{ messages[-1].content }}"
    assert put(client, {"chat_template": source}).status_code == 200
    error = put(client, {"chat_template": source, "system_prompt": "x"}).json()["error"]
    assert "no system" in error["message"]
