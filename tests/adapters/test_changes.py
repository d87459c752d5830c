"""The change log names whoever's names mean something else than before (tests/change_log.py)."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from adapters.access import resolve
from adapters.models import Adapter, AdapterVersion, Canary, ModelName
from tenants.auth import Principal
from tenants.models import Tenant
from tenants.scope import tenant_scope
from tests.change_log import told_by, told_columns
from tests.factories import get_acme, get_initech

EVERYBODY = frozenset({None})


def make_version(adapter: Adapter, number: int, **fields: Any) -> AdapterVersion:
    own = {"tenant_id": adapter.tenant_id, "adapter": adapter, "number": number}
    made = {"state": "ready", "digest": f"{number:064}", "created_by": "test"}
    return AdapterVersion.objects.create(**own, **made | fields)


def make_adapter(tenant: Tenant, name: str, first: int = 1) -> tuple[Adapter, AdapterVersion]:
    """With an active version, and three later ones that were."""
    adapter = Adapter.objects.create(tenant=tenant, name=name)
    for number in range(first + 1, first + 4):
        ended = timezone.now() - timedelta(days=number)
        make_version(adapter, number, superseded_at=ended)
    return adapter, make_version(adapter, first, state="active")


@pytest.mark.usefixtures("db")
def test_every_column_that_resolving_reads_is_watched(alice: Principal, carol: Principal) -> None:
    acme, initech = get_acme(), get_initech()
    with tenant_scope(initech.id):
        make_adapter(initech, "theirs", first=100)
    with tenant_scope(acme.id):
        adapter, active = make_adapter(acme, "bot")
        make_adapter(acme, "other", first=200)
        second, pinned = make_version(adapter, 5), make_version(adapter, 6)
        own = {"tenant": acme, "adapter": adapter}
        alias = ModelName.objects.create(**own, name="nick", version=pinned, is_alias=True)
        canary = Canary.objects.create(
            **own, version=second, percent=5, state="running", started_at=timezone.now()
        )
        own_name = ModelName.objects.get(name="bot")
        former = list(adapter.versions.filter(number__in=(3, 4)))
    names = ("bot", "nick", "other", "theirs", *(f"bot@{number}" for number in range(1, 7)))
    lookups = [
        lambda one=one, name=name: resolve(one, name) for one in (alice, carol) for name in names
    ]
    told = {}
    for rows in ([adapter], [alias, own_name], [canary], [second, pinned, active, *former]):
        found = told_columns(rows, lookups)
        # What moves to another tenant is both tenants'.
        assert found.pop("tenant_id") == EVERYBODY
        assert set(found.values()) == {frozenset({acme.id})}
        told[type(rows[0])] = set(found)
    assert not told[Adapter] & {"description", "keep", "gate", "updated_at"}
    assert not told[AdapterVersion] & {"heartbeat_at", "report", "attempt", "error"}
    assert not told[Canary] & {"started_at", "error"}


def test_what_comes_and_goes_is_told(scope: Principal) -> None:
    acme = get_acme()
    adapter, active = make_adapter(acme, "bot")
    assert told_by(lambda: make_version(adapter, 5)) == {acme.id}
    assert told_by(lambda: adapter.versions.filter(number=5).delete()) == {acme.id}
    assert told_by(lambda: Adapter.objects.create(tenant=acme, name="new")) == {acme.id}
    assert told_by(active.save) == frozenset()
