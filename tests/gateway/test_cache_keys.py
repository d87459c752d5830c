"""What one web process keeps between requests: nothing that a tenant is not part of."""

import ast
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connections
from django.utils import timezone

from adapters.access import Resolved
from gateway import caches, database
from gateway.admission import authenticate, authenticate_member, current_prices, resolve_model
from gateway.caches import TenantCache
from gateway.prefix import prefix_key
from gateway.runtime import Runtime
from tenants.audit import system
from tenants.keys import create_key
from tenants.models import ApiKey, Price, Tenant, User
from tenants.scope import unscoped
from tests.endpoints import make_things
from tests.factories import get_acme, get_initech, make_alice, make_carol, make_plan

# The caches load in threads, on connections of their own.
pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Asker:
    """A tenant whose things have the names of the other's."""

    tenant: Tenant
    user: User
    api_key: str


def make_asker(tenant: Tenant, user: User, number: int) -> Asker:
    make_things(tenant, "same-name", 1, sha256(tenant.slug.encode()).hexdigest())
    plan = make_plan(f"plan-{number}")
    Tenant.objects.filter(id=tenant.id).update(plan=plan)
    Price.objects.create(
        plan=plan, prompt_per_million=number, cached_per_million=0, completion_per_million=0
    )
    return Asker(tenant, user, create_key(system(tenant.id), "k", ["inference"]).raw)


def caches_of(runtime: Runtime) -> dict[str, TenantCache[Any]]:
    return vars(runtime.lookups)


@pytest.fixture
async def runtime(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Runtime]:
    """With a reader of its own, whose connection ends with the test."""
    with ThreadPoolExecutor(1) as readers:
        monkeypatch.setattr(database, "_READERS", readers)
        found = Runtime()
        for cache in caches_of(found).values():
            monkeypatch.setattr(cache, "_read", database.in_thread)
        yield found
        await database.in_thread(connections.close_all)
    await found.quota.close()
    await found.redis.aclose()
    await found.session.close()


@pytest.fixture
def askers(transactional_db: None) -> tuple[Asker, Asker]:
    return make_asker(get_acme(), make_alice(), 1), make_asker(get_initech(), make_carol(), 2)


async def resolve_own(runtime: Runtime, asker: Asker, name: str) -> Resolved:
    return await resolve_model(runtime, await authenticate(runtime, asker.api_key), name)


Question = Callable[[Runtime, Asker], Awaitable[Any]]
# By cache: how requests ask it. A new cache has none, and fails the test.
QUESTIONS: dict[str, list[Question]] = {
    "principals": [
        lambda runtime, asker: authenticate(runtime, asker.api_key),
        lambda runtime, asker: authenticate_member(runtime, asker.user.id, asker.tenant.slug),
    ],
    "models": [
        lambda runtime, asker: resolve_own(runtime, asker, "same-name"),
        lambda runtime, asker: resolve_own(runtime, asker, settings.BASE_MODEL_NAME),
    ],
    "prices": [lambda runtime, asker: current_prices(runtime, asker.tenant.id)],
}


@pytest.mark.case("C119")
async def test_every_cache_tells_tenants_apart(
    runtime: Runtime, askers: tuple[Asker, Asker]
) -> None:
    """Equal names, asked in turn: each gets its own, from an entry that only its own push drops."""
    for name, cache in caches_of(runtime).items():
        for ask in QUESTIONS[name]:
            cache.drop(None)
            first = [await ask(runtime, one) for one in askers]
            assert [await ask(runtime, one) for one in reversed(askers)] == first[::-1]
            assert len(cache._entries) == 2, name
            cache.drop(askers[0].tenant.id)
            [(key, kept)] = cache._entries.items()
            assert cache._tenant_of(key, kept.value) == askers[1].tenant.id
            assert kept.value == first[1]
    assert {one.digest for one in [await QUESTIONS["models"][0](runtime, a) for a in askers]} == {
        sha256(one.tenant.slug.encode()).hexdigest() for one in askers
    }


async def test_a_keys_last_use_is_written_while_it_is_kept(
    runtime: Runtime, askers: tuple[Asker, Asker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a look-up beside its users, now and then."""
    keys = ApiKey.objects
    long_ago = timezone.now() - timedelta(hours=1)

    def last_use() -> datetime | None:
        with unscoped():
            return keys.get(public_id=askers[0].api_key.split("-")[1]).last_used_at

    def forget_use() -> None:
        with unscoped():
            keys.update(last_used_at=long_ago)

    kept = await authenticate(runtime, askers[0].api_key)
    await database.in_thread(forget_use)
    assert await authenticate(runtime, askers[0].api_key) is kept
    assert await database.in_thread(last_use) == long_ago
    monkeypatch.setattr(caches, "RENEW_S", 0.0)
    assert await authenticate(runtime, askers[0].api_key) is kept
    while await database.in_thread(last_use) == long_ago:
        await asyncio.sleep(0.01)
    assert await authenticate(runtime, askers[0].api_key) == kept


def test_routings_prefix_is_the_tenants() -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    assert prefix_key(get_acme().cache_salt, body) != prefix_key(get_initech().cache_salt, body)


# What a module remembers for ever, by file: why it may, whoever asks.
MEMORIES = {
    "adapters/rendezvous.py:ranked_for": "pure: a digest and URLs to an order",
    "adapters/s3.py:client_of": "a connection to the store",
    "adapters/validation/child.py:nursery": "the process that forks the checks",
    "gateway/simulate/policies.py:ring": "the simulator's own",
    "inference/server/template_child.py:compiled": "pure: a template's text to its code",
    "tenants/counters/__init__.py:source": "the scripts' text",
    "tenants/counters/__init__.py:store_keys": "pure: a tenant and a key to names that hold both",
    "tenants/quota.py:as_text": "pure: limits to text",
    "tenants/store.py:store": "a connection to the counters",
    "tenants/usage_rows.py:insertion": "pure: columns and a number of rows to a statement",
}


def named(decorator: ast.expr) -> str:
    """Without its arguments."""
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def test_nothing_else_is_remembered() -> None:
    """functools' caches know no tenant but as an argument, and hear no push."""
    found = set()
    for room in ("tenants", "adapters", "gateway", "inference"):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    text = " ".join(map(named, node.decorator_list))
                    if "cache" in text.replace("cached_property", ""):
                        found.add(f"{path.relative_to(ROOT).as_posix()}:{node.name}")
    assert found == set(MEMORIES)
    for room in ("tenants", "adapters", "gateway"):
        for path in (ROOT / room).rglob("*.py"):
            assert "django.core.cache" not in path.read_text(), path
