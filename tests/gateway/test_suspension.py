"""A tenant is suspended and let in again in the admin of one web process: the other one follows."""

import time
from dataclasses import dataclass
from secrets import token_hex

import pytest
import requests

from gateway.settings import CACHE_TTL_S
from tests import factories
from tests.gateway.conftest import Customer, Stack
from tests.gateway.live import metric, wait_for
from tests.gateway.pair import Pair, polled, seen_refused

BACKSTOPS = 'grafthouse_cache_backstops_total{cache="principals"}'


@dataclass
class Operator:
    """Signed in at the one process, where Django's admin is."""

    url: str
    session: requests.Session

    def set_active(self, customer: Customer, is_active: bool) -> float:
        """When it was answered, by this machine's clock."""
        tenant = customer.tenant
        form = {"name": tenant.name, "plan": tenant.plan_id}
        answer = self.session.post(
            f"{self.url}/admin/tenants/tenant/{tenant.id}/change/",
            data=form | ({"is_active": "on"} if is_active else {}),
            headers=self._csrf(),
            allow_redirects=False,
            timeout=30,
        )
        assert answer.status_code == 302, answer.text
        return time.time()

    def sign_in(self, login: str) -> None:
        where = f"{self.url}/api/session"
        self.session.get(where, timeout=30)
        body = {"login": login, "password": factories.PASSWORD}
        self.session.post(where, json=body, headers=self._csrf(), timeout=30).raise_for_status()

    def _csrf(self) -> dict[str, str]:
        return {"X-CSRFToken": self.session.cookies["csrftoken"], "Referer": self.url}


@pytest.fixture
def operator(pair: Pair) -> Operator:
    login = f"oscar-{token_hex(4)}"
    factories.make_user(login, is_staff=True)
    operator = Operator(pair.here.url, requests.Session())
    operator.sign_in(login)
    return operator


@pytest.mark.case("C117")
def test_a_suspended_tenant_is_refused_by_the_other_process_and_let_in_again(
    pair: Pair, stack: Stack, operator: Operator
) -> None:
    customer, neighbour = stack.make_customer(), stack.make_customer()
    backstops = metric(pair.there, BACKSTOPS)
    with polled(pair, customer.api_key) as poll, polled(pair, neighbour.api_key) as beside:
        suspended = operator.set_active(customer, False)
        wait_for("the refusal", lambda: seen_refused(poll))
        out_s = poll.last(200) - suspended
        num_before = poll.num(200)
        let_in = operator.set_active(customer, True)
        wait_for("the return", lambda: poll.num(200) >= num_before + 3)
        in_s = poll.last(401) - let_in
    print(f"accepted until {1000 * out_s:.1f} ms after the answer to the suspension")
    print(f"refused until {1000 * in_s:.1f} ms after the answer to the return")
    assert out_s < CACHE_TTL_S
    assert in_s < CACHE_TTL_S
    # By the push, not by a lifetime that ended; and nobody else noticed.
    assert metric(pair.there, BACKSTOPS) == backstops
    assert beside.num(200) == len(beside.seen)
