"""The stacks of this room's tests: two fake replicas, or the real engine; one web process, one
database, one store.
"""

import itertools
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from pathlib import Path

import openai
import pytest
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from adapters.models import Adapter, AdapterVersion, VersionState
from tenants.audit import system
from tenants.keys import create_key
from tenants.models import Plan, Price, Tenant, UsageRecord
from tenants.scope import tenant_scope
from tests.gateway.engine_process import Engine, is_ready, load, start_engine
from tests.gateway.fake_replica import Behaviour, FakeReplica
from tests.gateway.live import (
    Web,
    default_database,
    default_store,
    make_database,
    metric,
    start_web,
    wait_for,
)
from tests.gateway.pair import FOLLOWED, Pair
from tests.services import free_port, start_valkey
from tests.tiny import make_adapter, make_base

# A digest of its own for every adapter of the real engine, the same ones in every run.
SEEDS = itertools.count(1)


@dataclass(frozen=True)
class Customer:
    """A tenant with a key, and what its tests need to do to it."""

    web: Web
    tenant: Tenant
    api_key: str

    def client(self, **options: object) -> openai.OpenAI:
        return self.web.client(self.api_key, **options)

    def usage(self, num_rows: int) -> list[UsageRecord]:
        """The tenant's rows, oldest first, once so many are settled; never more than so many."""

        def settled() -> list[UsageRecord] | None:
            with tenant_scope(self.tenant.id):
                rows = list(UsageRecord.objects.order_by("id"))
            assert len(rows) <= num_rows
            is_done = len(rows) == num_rows and all(row.status != "open" for row in rows)
            return rows if is_done else None

        return wait_for(f"{num_rows} settled rows", settled)

    def has_no_usage(self) -> bool:
        with tenant_scope(self.tenant.id):
            return not UsageRecord.objects.exists()


@dataclass(frozen=True)
class Stack:
    web: Web
    replicas: list[FakeReplica]
    database_url: str
    folder: Path

    def make_customer(self, scopes: tuple[str, ...] = ("inference",), **limits: object) -> Customer:
        """A new tenant on its own plan; its id is random, since the counter store is shared."""
        slug = f"t{secrets.token_hex(4)}"
        no_limits: dict[str, object] = dict.fromkeys(
            ("requests_per_minute", "tokens_per_minute", "max_concurrency", "monthly_budget")
        )
        plan = Plan.objects.create(slug=slug, name=slug, **(no_limits | limits))
        Price.objects.create(
            plan=plan,
            prompt_per_million=Decimal("2.50"),
            cached_per_million=Decimal("1.25"),
            completion_per_million=Decimal("10.00"),
            effective_from=timezone.now().replace(year=2020),
        )
        number = 1_000_000 + secrets.randbelow(10**9)
        tenant = Tenant.objects.create(id=number, slug=slug, name=slug, plan=plan)
        key = create_key(system(tenant.id), "test", list(scopes))
        return Customer(self.web, tenant, key.raw)

    def activate(
        self, customer: Customer, name: str, number: int = 1, digest: str | None = None
    ) -> str:
        """An active version without bytes, which both replicas say they hold: its digest."""
        own = f"{customer.tenant.id}/{name}/{number}".encode()
        digest = digest or sha256(own).hexdigest()
        with tenant_scope(customer.tenant.id):
            adapter, _ = Adapter.objects.get_or_create(tenant=customer.tenant, name=name)
            old = AdapterVersion.objects.filter(adapter=adapter, state=VersionState.ACTIVE)
            old.update(state=VersionState.READY, superseded_at=timezone.now())
            version = AdapterVersion.objects.create(
                tenant=customer.tenant,
                adapter=adapter,
                number=number,
                state=VersionState.ACTIVE,
                digest=digest,
                activated_at=timezone.now(),
                created_by="test",
            )
            adapter.active_version = version
            adapter.save()
        for replica in self.replicas:
            replica.digests.add(digest)
        return digest


@pytest.fixture(scope="session")
def running_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("gateway")
    replicas = [FakeReplica(), FakeReplica()]
    url = make_database(folder)
    web = start_web(folder, url, [replica.url for replica in replicas])
    yield Stack(web, replicas, url, folder)
    web.stop()
    for replica in replicas:
        replica.close()


@pytest.fixture
def stack(running_stack: Stack, django_db_blocker: DjangoDbBlocker) -> Iterator[Stack]:
    """Healthy at the start of every test, and talked to through Django's default connection."""
    for replica in running_stack.replicas:
        replica.behaviour = Behaviour()
        replica.bodies.clear()
    web = running_stack.web
    for replica in running_stack.replicas:
        up = f'grafthouse_replica_up{{replica="{replica.url}"}}'
        # One that a test before made fail again and again is left alone for up to 30 s.
        wait_for("the replicas", lambda up=up: metric(web, up) == 1, 60)  # type: ignore[misc]
    url = running_stack.database_url
    with django_db_blocker.unblock(), default_database(url), default_store():
        yield running_stack
    running_stack.web.close_clients()


@pytest.fixture
def acme(stack: Stack) -> Customer:
    customer = stack.make_customer()
    stack.activate(customer, "support-bot")
    return customer


@pytest.fixture
def globex(stack: Stack) -> Customer:
    return stack.make_customer()


@pytest.fixture(scope="session")
def engine_stack(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Engine, Web, str]]:
    """The real engine behind a web process of its own; and their database's URL."""
    folder = tmp_path_factory.mktemp("engine")
    base = make_base(folder / "base")
    engine = start_engine(base, free_port())
    url = make_database(folder)
    web = start_web(folder, url, [engine.url])
    wait_for("the engine", lambda: is_ready(web.url), timeout_s=90)
    yield engine, web, url
    web.stop()
    engine.process.kill()
    engine.process.wait(10)


@pytest.fixture
def engine(
    engine_stack: tuple[Engine, Web, str], django_db_blocker: DjangoDbBlocker
) -> Iterator[Engine]:
    with django_db_blocker.unblock(), default_database(engine_stack[2]), default_store():
        yield engine_stack[0]
    engine_stack[1].close_clients()


@pytest.fixture
def customer(engine: Engine, engine_stack: tuple[Engine, Web, str], tmp_path: Path) -> Customer:
    """Of the engine's stack, with an active adapter "bot"."""
    _, web, url = engine_stack
    stack = Stack(web, [], url, tmp_path)
    customer = stack.make_customer()
    adapter_dir = make_adapter(tmp_path / "adapter", engine.base, seed=next(SEEDS))
    stack.activate(customer, "bot", digest=load(engine, adapter_dir))
    return customer


@pytest.fixture(scope="module")
def running_pair(running_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    urls = [replica.url for replica in running_stack.replicas]
    store, store_url = start_valkey()
    with ExitStack() as cleanup:
        cleanup.callback(store.kill)
        webs = []
        for _ in range(2):
            folder = tmp_path_factory.mktemp("web")
            web = start_web(folder, running_stack.database_url, urls, REDIS_URL=store_url)
            cleanup.callback(web.stop)
            webs.append(web)
        yield Pair(*webs, store, store_url)


@pytest.fixture
def pair(running_pair: Pair, stack: Stack) -> Pair:
    for web in (running_pair.here, running_pair.there):
        wait_for("the subscription", lambda web=web: metric(web, FOLLOWED) == 1)  # type: ignore[misc]
    return running_pair
