"""seed_demo without its adapters (the base model here is none of theirs): what it makes and keeps.

Adapters are seeded in tests/e2e, where a worker and a replica run.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import authenticate
from django.core.management import call_command
from pytest_django import Settings

from gateway import demo_access
from tenants.auth import authenticate_key, principal_for_member
from tenants.keys import revoke_key
from tenants.models import ApiKey, Member, Plan, Price, Tenant, User
from tenants.scope import unscoped

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def house(settings: Settings, tmp_path: Path) -> Iterator[None]:
    settings.VAR_DIR = tmp_path
    # PBKDF2 is slow on purpose.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.BASE_MODEL_PATH = tmp_path / "model"
    settings.BASE_MODEL_PATH.mkdir()
    (settings.BASE_MODEL_PATH / "config.json").write_text('{"hidden_size": 64}')
    yield


def seed() -> dict[str, Any]:
    call_command("seed_demo")
    return demo_access.load()


def counts() -> dict[str, int]:
    with unscoped():
        return {model.__name__: model.objects.count() for model in (Member, ApiKey)} | {
            model.__name__: model.objects.count() for model in (Plan, Price, Tenant, User)
        }


def test_it_works() -> None:
    access = seed()
    assert [tenant["slug"] for tenant in access["tenants"]] == ["acme", "globex"]
    for tenant in access["tenants"]:
        user = authenticate(username=tenant["login"], password=tenant["password"])
        assert isinstance(user, User)
        assert not user.is_staff
        assert principal_for_member(user.id, tenant["slug"]).role == "owner"
        assert authenticate_key(tenant["api_key"]).tenant_slug == tenant["slug"]
        assert tenant["adapters"] == []
    operator = authenticate(username="operator", password=access["operator"]["password"])
    assert isinstance(operator, User)
    assert operator.is_staff
    assert demo_access.path().stat().st_mode & 0o777 == 0o600


def test_a_second_time_changes_nothing() -> None:
    first, before = seed(), counts()
    assert seed() == first
    assert counts() == before


def test_what_the_file_lost_is_made_again_for_the_same_people() -> None:
    first, before = seed(), counts()
    demo_access.path().unlink()
    second = seed()
    assert counts() == {**before, "ApiKey": before["ApiKey"] + 2}
    for old, new in zip(first["tenants"], second["tenants"], strict=True):
        assert old["password"] != new["password"]
        assert authenticate(username=new["login"], password=new["password"])
        assert not authenticate(username=old["login"], password=old["password"])


def test_a_revoked_key_is_replaced() -> None:
    access = seed()
    tenant = access["tenants"][0]
    owner = principal_for_member(User.objects.get(username=tenant["login"]).id, tenant["slug"])
    revoke_key(owner, tenant["api_key"].split("-")[1])
    again = seed()["tenants"]
    assert again[0]["api_key"] != tenant["api_key"]
    assert again[1] == access["tenants"][1]


def test_a_password_that_someone_changed_is_left_alone() -> None:
    tenant = seed()["tenants"][0]
    user = User.objects.get(username=tenant["login"])
    user.set_password("of their own")
    user.save()
    seed()
    assert authenticate(username=tenant["login"], password="of their own")


def test_the_welcome_shows_secrets_once(capsys: pytest.CaptureFixture[str]) -> None:
    access = seed()
    for tenant in access["tenants"]:
        tenant["adapters"] = ["bot"]
    demo_access.keep(access)
    new, later = demo_access.welcome(is_new=True), demo_access.welcome(is_new=False)
    for tenant in access["tenants"]:
        assert tenant["api_key"] in new
        assert tenant["password"] in new
        assert tenant["api_key"] not in later
        assert tenant["password"] not in later
    assert str(demo_access.path()) in later
    assert "curl" in new
    assert "curl" in later


def test_the_json_of_the_curl_snippet_is_json() -> None:
    snippet = demo_access.curl_snippet("http://127.0.0.1:1", "gh-a-b", "bot")
    body = json.loads(snippet.split("-d '")[1].removesuffix("'"))
    assert body["model"] == "bot"
