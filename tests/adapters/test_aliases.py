"""Second names: what they mean, what they hold fast, and that a name means one thing only."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client

from adapters import aliases
from adapters.access import resolve, servable_models
from adapters.activation import begin_activation, finish_activation
from adapters.aliases import create_alias, point_alias
from adapters.imports import begin_import
from adapters.models import Adapter, AdapterVersion, ModelName, VersionState
from adapters.placement import needed_digests
from adapters.publish import create_adapter, delete_adapter, delete_version, upload
from adapters.uploads import Announced, open_upload
from tenants import events
from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.models import AuditEvent, Role
from tenants.scope import tenant_scope
from tests import factories
from tests.adapters.conftest import put_in_quarantine

ROOT = "/api/tenants/acme/aliases/"
DIGESTS = {number: f"{number}" * 64 for number in range(1, 6)}


def make_version(adapter: Adapter, number: int, state: VersionState) -> AdapterVersion:
    """Without bytes."""
    return AdapterVersion.objects.create(
        tenant_id=adapter.tenant_id,
        adapter=adapter,
        number=number,
        state=state,
        digest=DIGESTS[number],
    )


@pytest.fixture
def bot(scope: Principal) -> Adapter:
    """Versions 1 and 2 never served, 3 active."""
    adapter = create_adapter(scope, "bot")
    for number in (1, 2):
        make_version(adapter, number, VersionState.READY)
    adapter.active_version = make_version(adapter, 3, VersionState.ACTIVE)
    adapter.save()
    return adapter


def send(client: Client, method: str, url: str, body: object) -> Any:
    return getattr(client, method)(url, json.dumps(body), content_type="application/json")


def refused(call: Any, *args: Any) -> tuple[int, str]:
    with pytest.raises(ApiError) as caught:
        call(*args)
    return caught.value.status, caught.value.code


def test_it_works(scope: Principal, bot: Adapter) -> None:
    create_alias(scope, "prod", bot, None)
    create_alias(scope, "old", bot, 1)
    prod = resolve(scope, "prod")
    assert (prod.digest, prod.adapter, prod.version) == (DIGESTS[3], "bot", 3)
    assert prod.public_name == "prod"
    old = resolve(scope, "old")
    assert (old.digest, old.adapter, old.version) == (DIGESTS[1], "bot", 1)
    # Pinned, it is served by its number too; version 2, of which no alias speaks, is not.
    assert resolve(scope, "bot@1").digest == DIGESTS[1]
    assert refused(resolve, scope, "bot@2") == (404, "model_not_found")
    assert needed_digests() == {DIGESTS[1], DIGESTS[3]}
    listed = {one.id: one.digest for one in servable_models(scope)}
    assert listed == {
        "tiny-base": None,
        "bot": DIGESTS[3],
        "old": DIGESTS[1],
        "prod": DIGESTS[3],
    }


def test_it_follows_the_active_version(scope: Principal, bot: Adapter) -> None:
    alias = create_alias(scope, "prod", bot, None)
    second = AdapterVersion.objects.get(number=2)
    begin_activation(scope, second)
    assert finish_activation(second)
    assert resolve(scope, "prod").version == 2
    point_alias(scope, alias, bot, 3)
    assert resolve(scope, "prod").version == 3


def test_no_chains_and_no_numbers(scope: Principal, bot: Adapter, client: Client) -> None:
    create_alias(scope, "prod", bot, None)
    for name in ("prod@3", "prod@1", "Prod", "nothing", "pr\0d"):
        assert refused(resolve, scope, name) == (404, "model_not_found")
    body = {"name": "live", "adapter": "prod"}
    assert send(client, "post", ROOT, body).status_code == 404


def test_an_alias_of_nothing_active(scope: Principal) -> None:
    create_alias(scope, "prod", create_adapter(scope, "empty"), None)
    assert refused(resolve, scope, "prod") == (404, "model_not_found")
    assert [one.id for one in servable_models(scope)] == ["tiny-base"]


def test_another_tenants_alias(
    scope: Principal, bot: Adapter, carol: Principal, client: Client
) -> None:
    with tenant_scope(carol.tenant_id):
        create_alias(carol, "prod", create_adapter(carol, "bot"), None)
    assert refused(resolve, scope, "prod") == (404, "model_not_found")
    assert client.get(f"{ROOT}prod/").status_code == 404
    # Each tenant has its own names.
    create_alias(scope, "prod", bot, None)


@pytest.mark.parametrize("name", ["Prod", "a@1", "", "base", "tiny-base", "x" * 64, "a\0b"])
def test_bad_names(scope: Principal, bot: Adapter, name: str) -> None:
    assert refused(create_alias, scope, name, bot, None)[0] == 400


def test_a_name_means_one_thing(scope: Principal, bot: Adapter) -> None:
    create_alias(scope, "prod", bot, None)
    assert refused(create_alias, scope, "prod", bot, 1) == (409, "alias_exists")
    assert refused(create_alias, scope, "bot", bot, None) == (409, "adapter_exists")
    assert refused(create_adapter, scope, "prod") == (409, "alias_exists")
    # What makes an adapter by the way is refused as well, before bytes travel.
    assert refused(upload, scope, "prod", put_in_quarantine({})) == (409, "alias_exists")
    announced = Announced("prod.zip", 10, "fine-tune")
    assert refused(open_upload, scope, announced) == (409, "alias_exists")
    assert refused(begin_import, scope, "prod", "a/b", "main", "") == (409, "alias_exists")
    delete_adapter(scope, bot)
    create_adapter(scope, "prod")


def test_the_database_holds_it(scope: Principal, bot: Adapter) -> None:
    create_alias(scope, "prod", bot, None)
    tenant_id = scope.tenant_id
    for row in (
        Adapter(tenant_id=tenant_id, name="prod"),
        ModelName(tenant_id=tenant_id, name="bot", adapter=bot, is_alias=True),
        ModelName(tenant_id=tenant_id, name="bot-2", adapter=bot),
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            row.save()
    assert Adapter.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_race_makes_one_of_both(alice: Principal) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("the test database is in memory: threads lock its tables without waiting")
    with tenant_scope(alice.tenant_id):
        bot = create_adapter(alice, "bot")

    def attempt(number: int) -> str:
        try:
            with tenant_scope(alice.tenant_id):
                if number % 2:
                    return str(upload(alice, "prod", put_in_quarantine({})).adapter)
                return str(create_alias(alice, "prod", bot, None))
        except ApiError as error:
            assert error.status == 409
            return error.code
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(attempt, range(8)))
    with tenant_scope(alice.tenant_id):
        kinds = ModelName.objects.filter(name="prod").values_list("is_alias", flat=True)
        assert kinds.count() == 1
        # Uploads after the first go to the same adapter; of aliases there is one.
        assert outcomes.count("prod") == (1 if kinds[0] else 4)


def test_what_is_pinned_is_not_deleted(scope: Principal, bot: Adapter) -> None:
    alias = create_alias(scope, "old", bot, 1)
    first = AdapterVersion.objects.get(number=1)
    assert refused(delete_version, scope, first) == (409, "version_in_use")
    point_alias(scope, alias, bot, 2)
    delete_version(scope, first)
    assert needed_digests() == {DIGESTS[2], DIGESTS[3]}


def test_an_adapter_takes_its_aliases_along(scope: Principal, bot: Adapter) -> None:
    create_alias(scope, "prod", bot, None)
    create_alias(scope, "old", bot, 1)
    delete_adapter(scope, bot)
    assert not ModelName.objects.exists()
    assert AuditEvent.objects.get(action="adapter.deleted").before == {
        "digests": [DIGESTS[1], DIGESTS[2], DIGESTS[3]],
        "aliases": ["old", "prod"],
    }


def test_what_has_no_bytes_is_not_pinned(scope: Principal, bot: Adapter) -> None:
    make_version(bot, 4, VersionState.REJECTED)
    assert refused(create_alias, scope, "a", bot, 4) == (409, "not_servable")
    assert refused(create_alias, scope, "a", bot, 9) == (404, "not_found")
    assert not ModelName.objects.filter(name="a").exists()


def test_there_are_not_too_many(
    scope: Principal, bot: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aliases, "MAX_ALIASES", 3)
    for number in range(3):
        create_alias(scope, f"a{number}", bot, None)
    assert refused(create_alias, scope, "b", bot, None) == (403, "alias_limit_reached")


def test_the_routes(
    client: Client,
    scope: Principal,
    bot: Adapter,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: Any,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(events.Sending, "send", lambda sending: told.append(sending.event))
    # Said twice in one transaction, an event is sent once; a test is one transaction.
    connection.run_on_commit.clear()
    with django_capture_on_commit_callbacks(execute=True):
        made = send(client, "post", ROOT, {"name": "prod", "adapter": "bot"})
    assert made.status_code == 201, made.json()
    assert set(made.json()) == {"name", "adapter", "version", "created_by", "created_at"}
    assert (made.json()["version"], made.json()["created_by"]) == (None, "alice")
    connection.run_on_commit.clear()
    with django_capture_on_commit_callbacks(execute=True):
        moved = send(client, "put", f"{ROOT}prod/", {"adapter": "bot", "version": 1})
    assert moved.json()["version"] == client.get(f"{ROOT}prod/").json()["version"] == 1
    versions = client.get("/api/tenants/acme/adapters/bot/versions/").json()["results"]
    assert [one["is_served"] for one in versions] == [True, False, True]
    assert client.get(ROOT).json()["count"] == 1
    assert client.get(f"{ROOT}?adapter=bot").json()["results"] == [moved.json()]
    assert client.get(f"{ROOT}?adapter=nothing").status_code == 404
    connection.run_on_commit.clear()
    with django_capture_on_commit_callbacks(execute=True):
        assert client.delete(f"{ROOT}prod/").status_code == 204
    assert client.get(f"{ROOT}prod/").status_code == 404
    assert told == ["adapter.changed"] * 3
    pinned, free = {"adapter": "bot", "version": 1}, {"adapter": "bot", "version": None}
    rows = AuditEvent.objects.filter(action__startswith="alias.").order_by("id")
    assert [(row.action, row.before, row.after) for row in rows] == [
        ("alias.created", None, free),
        ("alias.changed", free, pinned),
        ("alias.deleted", pinned, None),
    ]


def test_bad_bodies_and_roles(client: Client, scope: Principal, bot: Adapter) -> None:
    for body in ({}, {"name": "a"}, {"name": "a", "adapter": "bot", "version": 0}, []):
        assert send(client, "post", ROOT, body).status_code == 400
    viewer = factories.make_user("victor")
    factories.add_member(factories.get_acme(), viewer, Role.VIEWER)
    client.force_login(viewer)
    assert client.get(ROOT).status_code == 200
    assert send(client, "post", ROOT, {"name": "a", "adapter": "bot"}).status_code == 403
