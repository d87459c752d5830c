"""Each row of the table: no path of the ORM reaches a tenant's rows without its scope."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, transaction
from django.db.models import Count, Exists, OuterRef

from tenants.models import ApiKey, Member, Tenant
from tenants.scope import ScopeError, current_tenant_id, tenant_scope, unscoped
from tests.factories import get_acme, get_initech

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parent.parent.parent


def make_key(tenant: Tenant, name: str) -> ApiKey:
    with tenant_scope(tenant.id):
        return ApiKey.objects.create(
            tenant=tenant, public_id=name.ljust(16, "0"), name=name, scopes=[]
        )


@pytest.fixture
def keys() -> tuple[ApiKey, ApiKey]:
    return make_key(get_acme(), "acme"), make_key(get_initech(), "initech")


def test_it_works(keys: tuple[ApiKey, ApiKey]) -> None:
    with tenant_scope(keys[0].tenant_id):
        assert [key.name for key in ApiKey.objects.all()] == ["acme"]
    with tenant_scope(keys[1].tenant_id):
        assert [key.name for key in ApiKey.objects.all()] == ["initech"]
    with unscoped():
        assert ApiKey.objects.count() == 2


QUERIES: dict[str, Callable[[], Any]] = {
    "list": lambda: list(ApiKey.objects.all()),
    "filter": lambda: list(ApiKey.objects.filter(name="acme")),
    "get": lambda: ApiKey.objects.get(name="acme"),
    "first": lambda: ApiKey.objects.first(),
    "count": lambda: ApiKey.objects.count(),
    "in_bulk": lambda: ApiKey.objects.in_bulk([1]),
    "exists": lambda: ApiKey.objects.exists(),
    "exclude exists": lambda: ApiKey.objects.exclude(name="x").exists(),
    "select_related exists": lambda: ApiKey.objects.select_related("tenant").exists(),
    "values": lambda: list(ApiKey.objects.values("name")),
    "values_list": lambda: list(ApiKey.objects.values_list("name", flat=True)),
    "iterator": lambda: list(ApiKey.objects.exclude(name="x").iterator()),
    "explain": lambda: ApiKey.objects.exclude(name="x").explain(),
    "dates": lambda: list(ApiKey.objects.dates("created_at", "day")),
    "aggregate": lambda: ApiKey.objects.aggregate(Count("id")),
    "annotate": lambda: list(ApiKey.objects.values("name").annotate(Count("id"))),
    "distinct count": lambda: ApiKey.objects.distinct().count(),
    "update": lambda: ApiKey.objects.update(name="x"),
    "filter update": lambda: ApiKey.objects.filter(name="acme").update(name="x"),
    "bulk_update": lambda: ApiKey.objects.bulk_update([ApiKey(id=1, name="x")], ["name"]),
    "delete": lambda: ApiKey.objects.all().delete(),
    "fast delete": lambda: Member.objects.all().delete(),
    "raw delete": lambda: Member.objects.all()._raw_delete("default"),
    "union": lambda: list(ApiKey.objects.all().union(ApiKey.objects.exclude(name="x"))),
    "subquery": lambda: list(Tenant.objects.filter(id__in=ApiKey.objects.values("tenant_id"))),
    "exists of another": lambda: list(
        Tenant.objects.filter(Exists(ApiKey.objects.filter(tenant_id=OuterRef("id"))))
    ),
    "reverse of tenant": lambda: list(Tenant.objects.get(slug="acme").apikey_set.all()),
    "prefetch": lambda: list(Tenant.objects.prefetch_related("apikey_set")),
    "create": lambda: ApiKey.objects.create(tenant=get_acme(), public_id="z", scopes=[]),
    "get_or_create": lambda: ApiKey.objects.get_or_create(name="new", tenant=get_acme()),
    "update_or_create": lambda: ApiKey.objects.update_or_create(name="new", tenant=get_acme()),
    "bulk_create": lambda: ApiKey.objects.bulk_create([ApiKey(tenant=get_acme(), scopes=[])]),
    "save": lambda: ApiKey(tenant=get_acme(), public_id="z", scopes=[]).save(),
    "raw": lambda: ApiKey.objects.raw("SELECT * FROM tenants_apikey"),
    "queryset raw": lambda: ApiKey.objects.all().raw("SELECT * FROM tenants_apikey"),
    "base manager": lambda: list(ApiKey._base_manager.all()),
    "default manager": lambda: list(ApiKey._default_manager.all()),
}


@pytest.mark.parametrize("name", QUERIES)
def test_outside_of_a_scope(name: str, keys: tuple[ApiKey, ApiKey]) -> None:
    with pytest.raises(ScopeError), transaction.atomic():
        QUERIES[name]()
    with unscoped():
        assert sorted(ApiKey.objects.values_list("name", flat=True)) == ["acme", "initech"]


OBJECT_CALLS: dict[str, Callable[[ApiKey], Any]] = {
    "refresh": lambda key: key.refresh_from_db(),
    "save": lambda key: key.save(),
    "delete": lambda key: key.delete(),
}


@pytest.mark.parametrize("name", OBJECT_CALLS)
@pytest.mark.parametrize("scope", ["none", "stranger"])
def test_an_object_in_hand_is_no_way_round(
    name: str, scope: str, keys: tuple[ApiKey, ApiKey]
) -> None:
    if scope == "none":
        with pytest.raises(ScopeError):
            OBJECT_CALLS[name](keys[0])
        return
    with tenant_scope(keys[1].tenant_id), pytest.raises((ScopeError, ApiKey.DoesNotExist)):
        OBJECT_CALLS[name](keys[0])


async def test_async_calls_outside_of_a_scope() -> None:
    async def rows() -> list[ApiKey]:
        return [key async for key in ApiKey.objects.exclude(name="x")]

    async def iterated() -> list[ApiKey]:
        return [key async for key in ApiKey.objects.exclude(name="x").aiterator()]

    calls = [rows, iterated, ApiKey.objects.acount, ApiKey.objects.aexists, ApiKey.objects.afirst]
    for call in calls:
        with pytest.raises(ScopeError):
            await call()


def test_none_needs_no_scope(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        assert list(ApiKey.objects.none()) == []
        assert ApiKey.objects.none().count() == 0
        assert not ApiKey.objects.none().exists()


def test_rows_of_another_tenant_in_scope(keys: tuple[ApiKey, ApiKey]) -> None:
    acme, initech = keys
    with tenant_scope(initech.tenant_id):
        assert ApiKey.objects.filter(id=acme.id).first() is None
        assert ApiKey.objects.filter(id=acme.id).update(name="x") == 0
        assert ApiKey.objects.filter(id=acme.id).delete()[0] == 0
        assert list(acme.tenant.apikey_set.all()) == []
        with pytest.raises(ScopeError):
            ApiKey.objects.create(tenant_id=acme.tenant_id, public_id="z", scopes=[])
        with pytest.raises(ScopeError):
            ApiKey.objects.bulk_create([ApiKey(tenant_id=acme.tenant_id, scopes=[])])
    with unscoped():
        assert ApiKey.objects.get(id=acme.id).name == "acme"


def test_a_row_cannot_be_pulled_into_another_tenant(keys: tuple[ApiKey, ApiKey]) -> None:
    acme, initech = keys
    acme.tenant_id = initech.tenant_id
    with tenant_scope(initech.tenant_id), pytest.raises(IntegrityError):
        acme.save()


def test_querysets_of_two_scopes_do_not_mix(keys: tuple[ApiKey, ApiKey]) -> None:
    outside = ApiKey.objects.all()
    with tenant_scope(keys[0].tenant_id):
        inside = ApiKey.objects.all()
        with pytest.raises(ScopeError):
            inside | outside
        with pytest.raises(ScopeError):
            list(outside)
    with tenant_scope(keys[1].tenant_id), pytest.raises(ScopeError):
        inside | ApiKey.objects.all()


def test_a_queryset_keeps_the_scope_it_was_built_in(keys: tuple[ApiKey, ApiKey]) -> None:
    with tenant_scope(keys[0].tenant_id):
        rows = ApiKey.objects.all()
    with tenant_scope(keys[1].tenant_id):
        assert [key.name for key in rows] == ["acme"]
    assert [key.name for key in rows.exclude(name="x")] == ["acme"]


def test_scopes_nest_and_end() -> None:
    with tenant_scope(1):
        with unscoped():
            assert current_tenant_id() is None
            with tenant_scope(2):
                assert current_tenant_id() == 2
        assert current_tenant_id() == 1
    with pytest.raises(ZeroDivisionError), tenant_scope(3):
        raise ZeroDivisionError
    assert current_tenant_id() is None


async def test_tasks_do_not_share_a_scope() -> None:
    async def seen(tenant_id: int) -> int | None:
        with tenant_scope(tenant_id):
            await asyncio.sleep(0.01)
            return await sync_to_async(current_tenant_id)()

    assert await asyncio.gather(*map(seen, range(1, 20))) == list(range(1, 20))


def test_a_bare_thread_has_no_scope() -> None:
    with tenant_scope(1), ThreadPoolExecutor(1) as pool:
        assert pool.submit(current_tenant_id).result() is None


# The guard itself; the ledger's two statements, whose rows each name their tenant; a checkpoint and
# a probe, which ask no table; the change log, which has ids of all tenants and nothing else.
ROUND_THE_GUARD = {
    "tenants/scope.py",
    "tenants/changes.py",
    "tenants/usage_rows.py",
    "gateway/database.py",
    "gateway/health.py",
}


def test_raw_sql_is_written_nowhere() -> None:
    """Cursors and raw() go round the guard: product code uses them here only."""
    for room in ("tenants", "adapters", "gateway"):
        for path in (ROOT / room).rglob("*.py"):
            if path.relative_to(ROOT).as_posix() in ROUND_THE_GUARD:
                continue
            for word in (".raw(", ".cursor(", "RawSQL", ".extra("):
                assert word not in path.read_text(), f"{path}: {word}"
