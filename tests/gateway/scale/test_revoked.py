"""A thousand requests over three web processes, right after what ends a key."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
import requests
from django.utils import timezone

from gateway.settings import CACHE_TTL_S
from tenants.audit import system
from tenants.keys import revoke_key, rotate_key
from tenants.models import ApiKey, Tenant
from tenants.scope import tenant_scope
from tests.gateway.conftest import Customer, Stack
from tests.gateway.live import Web, start_web

NUM_REQUESTS = 1_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@dataclass
class Fired:
    """Requests over several processes: when each began, and its status."""

    seen: list[tuple[float, int]] = field(default_factory=list)

    def run(self, web: Web, raw: str, num_requests: int) -> None:
        with requests.Session() as session:
            session.headers["authorization"] = f"Bearer {raw}"
            for _ in range(num_requests):
                began = time.time()
                answer = session.get(f"{web.url}/v1/models", timeout=30)
                self.seen.append((began, answer.status_code))


def fire(webs: list[Web], raw: str, num_requests: int) -> Fired:
    fired = Fired()
    share = -(-num_requests // len(webs))
    threads = [threading.Thread(target=fired.run, args=(web, raw, share)) for web in webs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return fired


@pytest.fixture(scope="module")
def three_webs(
    running_stack: Stack, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Web]]:
    urls = [replica.url for replica in running_stack.replicas]
    with ExitStack() as cleanup:
        webs = [running_stack.web]
        for _ in range(2):
            folder = tmp_path_factory.mktemp("web")
            webs.append(start_web(folder, running_stack.database_url, urls))
            cleanup.callback(webs[-1].stop)
        yield webs


def revoke(customer: Customer, public_id: str) -> None:
    revoke_key(system(customer.tenant.id), public_id)


def rotate(customer: Customer, public_id: str) -> None:
    rotate_key(system(customer.tenant.id), public_id, timedelta(0))


def revoke_unheard(customer: Customer, public_id: str) -> None:
    """Past every hook, as a push that is lost."""
    with tenant_scope(customer.tenant.id):
        ApiKey.objects.filter(public_id=public_id).update(revoked_at=timezone.now())


def disable_tenant(customer: Customer, public_id: str) -> None:
    Tenant.objects.filter(id=customer.tenant.id).update(is_active=False)


@pytest.mark.case("C117")
@pytest.mark.parametrize("act", [revoke, rotate, revoke_unheard, disable_tenant])
def test_a_thousand_requests_after_it(
    stack: Stack, three_webs: list[Web], act: Callable[[Customer, str], None]
) -> None:
    """Every process knew the key; none accepts it for longer than a kept answer may live."""
    customer = stack.make_customer()
    warm = fire(three_webs, customer.api_key, 30)
    assert {status for _, status in warm.seen} == {200}
    act(customer, customer.api_key.split("-")[1])
    acted = time.time()
    fired = fire(three_webs, customer.api_key, NUM_REQUESTS)
    statuses = Counter(status for _, status in fired.seen)
    last = max((began - acted for began, status in fired.seen if status == 200), default=0.0)
    print(f"{act.__name__}: {dict(statuses)}, the last accepted {1000 * last:.0f} ms after it")
    assert statuses.keys() <= {200, 401} and statuses[401] > NUM_REQUESTS / 2
    assert last < CACHE_TTL_S
