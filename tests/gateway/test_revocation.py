"""Two web processes over one database and one store: what is taken on one is refused by the other.

Real sockets; the other one is asked a hundred times a second meanwhile (tests/gateway/pair.py).
"""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest
import requests
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from adapters.models import Adapter
from gateway.settings import CACHE_TTL_S
from tenants.models import ApiKey
from tenants.scope import tenant_scope, unscoped
from tests.gateway.conftest import Customer, Stack
from tests.gateway.live import Web, metric, wait_for
from tests.gateway.pair import FOLLOWED, Pair, polled, seen_refused

DELAY = "grafthouse_invalidation_delay_seconds"
BACKSTOPS = 'grafthouse_cache_backstops_total{cache="principals"}'


@dataclass
class Owner:
    """Acts on the one process by a key that may do everything."""

    pair: Pair
    customer: Customer

    def call(self, method: str, path: str, **body: object) -> requests.Response:
        url = f"{self.pair.here.url}/api/tenants/{self.customer.tenant.slug}/keys/{path}"
        headers = {"authorization": f"Bearer {self.customer.api_key}"}
        answer = requests.request(method, url, json=body or None, headers=headers, timeout=30)
        assert answer.ok, answer.text
        return answer

    def make_key(self, **fields: object) -> str:
        made = self.call("POST", "", **({"name": "poll", "scopes": ["inference"]} | fields))
        return str(made.json()["secret"])

    def revoke(self, raw: str) -> None:
        self.call("DELETE", f"{raw.split('-')[1]}/")


@pytest.fixture
def owner(pair: Pair, stack: Stack) -> Owner:
    return Owner(pair, stack.make_customer(scopes=("inference", "admin")))


def committed(raw: str) -> float:
    """When the revocation was there for anyone to read."""

    def is_revoked() -> float | None:
        with unscoped():
            row = ApiKey.objects.get(public_id=raw.split("-")[1])
        return time.time() if row.revoked_at else None

    return wait_for("the commit", is_revoked)


@pytest.mark.case("C117")
def test_a_revoked_key_is_refused_by_the_other_process(pair: Pair, owner: Owner) -> None:
    num_before, backstops = metric(pair.there, f"{DELAY}_count"), metric(pair.there, BACKSTOPS)
    raw = owner.make_key()
    with polled(pair, raw) as poll:
        owner.revoke(raw)
        answered = time.time()
        wait_for("the refusal", lambda: seen_refused(poll))
    delay_s = poll.last(200) - answered
    print(f"last accepted {1000 * delay_s:.1f} ms after the answer to the revocation")
    assert delay_s < CACHE_TTL_S
    # By the push, and it says how long it took.
    wait_for("both notices", lambda: metric(pair.there, f"{DELAY}_count") == num_before + 2)
    assert metric(pair.there, f'{DELAY}_bucket{{le="1.0"}}') >= num_before + 2
    assert metric(pair.there, BACKSTOPS) == backstops


@contextmanager
def no_channels(pair: Pair) -> Iterator[None]:
    """Nobody may subscribe or publish; whoever listened is thrown out."""
    with pair.control() as control:
        control.execute_command("ACL", "SETUSER", "default", "resetchannels")
        try:
            wait_for("the end of pushes", lambda: metric(pair.there, FOLLOWED) == 0)
            yield
        finally:
            control.execute_command("ACL", "SETUSER", "default", "allchannels")


@contextmanager
def frozen_store(pair: Pair) -> Iterator[None]:
    """It takes connections and answers nothing."""
    pair.store.send_signal(signal.SIGSTOP)
    try:
        wait_for("the silence to be noticed", lambda: metric(pair.there, FOLLOWED) == 0)
        yield
    finally:
        pair.store.send_signal(signal.SIGCONT)


@pytest.mark.case("C117")
@pytest.mark.parametrize("cut", [no_channels, frozen_store])
def test_without_the_push_a_lifetime_is_the_bound(
    pair: Pair, owner: Owner, cut: Callable[[Pair], ExitStack]
) -> None:
    raw = owner.make_key()
    backstops = metric(pair.there, BACKSTOPS)
    revoking = threading.Thread(target=owner.revoke, args=(raw,))
    with cut(pair), polled(pair, raw) as poll:
        revoking.start()
        at = committed(raw)
        wait_for("the refusal", lambda: seen_refused(poll))
    revoking.join(30)
    print(f"last accepted {1000 * (poll.last(200) - at):.1f} ms after the commit")
    assert poll.last(200) < at + CACHE_TTL_S
    assert metric(pair.there, BACKSTOPS) == backstops + 1


@pytest.mark.case("C117")
def test_an_open_socket_on_the_other_process(pair: Pair, owner: Owner) -> None:
    raw = owner.make_key()
    url = pair.there.url.replace("http", "ws") + "/ws/v1/chat"
    with connect(url, additional_headers={"authorization": f"Bearer {raw}"}) as link:
        chat = {"model": "tiny-base", "messages": [{"role": "user", "content": "Hi"}]}
        link.send(json.dumps({"type": "chat", "id": "a", "body": chat}))
        while json.loads(link.recv(timeout=10))["type"] != "done":
            pass
        owner.revoke(raw)
        # The push is on its way; nothing is kept after it.
        wait_for("the push", lambda: refused_at(pair.there, raw))
        link.send(json.dumps({"type": "chat", "id": "b", "body": chat}))
        assert json.loads(link.recv(timeout=10))["error"]["code"] == "invalid_api_key"
        with pytest.raises(ConnectionClosed) as caught:
            link.recv(timeout=10)
    assert caught.value.rcvd is not None and caught.value.rcvd.code == 4401


def refused_at(web: Web, raw: str) -> bool:
    headers = {"authorization": f"Bearer {raw}"}
    return requests.get(f"{web.url}/v1/models", headers=headers, timeout=30).status_code == 401


def listed_at(web: Web, raw: str) -> list[str]:
    headers = {"authorization": f"Bearer {raw}"}
    answer = requests.get(f"{web.url}/v1/models", headers=headers, timeout=30)
    return [one["id"] for one in answer.json()["data"]]


def test_what_a_key_may_use_changes_on_the_other_process(pair: Pair, owner: Owner) -> None:
    raw = owner.make_key()
    assert listed_at(pair.there, raw) == ["tiny-base"]
    with tenant_scope(owner.customer.tenant.id):
        Adapter.objects.create(tenant=owner.customer.tenant, name="bot")
    for names, listed in ((["bot"], []), ([], ["tiny-base"])):
        owner.call("PATCH", f"{raw.split('-')[1]}/", allowed_models=names)
        answered = time.monotonic()
        wait_for("the change", lambda: listed_at(pair.there, raw) == listed)  # noqa: B023
        assert time.monotonic() - answered < CACHE_TTL_S


@pytest.mark.case("C117")
def test_the_end_of_an_overlap_is_exact(pair: Pair, owner: Owner) -> None:
    """Kept answers are held to it too: not a cache's lifetime later."""
    raw = owner.make_key()
    new = owner.call("POST", f"{raw.split('-')[1]}/rotate/", overlap_s=2).json()
    with unscoped():
        end = ApiKey.objects.get(public_id=raw.split("-")[1]).expires_at
    assert end is not None
    with polled(pair, raw) as poll:
        wait_for("the refusal", lambda: seen_refused(poll))
    assert poll.last(200) <= end.timestamp()
    assert not refused_at(pair.there, new["secret"])


def status_of_chat(web: Web, raw: str) -> int:
    body = {"model": "tiny-base", "messages": [{"role": "user", "content": "Hi"}]}
    headers = {"authorization": f"Bearer {raw}"}
    url = f"{web.url}/v1/chat/completions"
    return requests.post(url, json=body, headers=headers, timeout=30).status_code


def test_a_lowered_limit_acts_on_the_other_process(pair: Pair, owner: Owner) -> None:
    raw = owner.make_key()
    assert [status_of_chat(pair.there, raw) for _ in range(2)] == [200, 200]
    owner.call("PATCH", f"{raw.split('-')[1]}/", requests_per_minute=1)
    answered = time.monotonic()
    wait_for("the limit", lambda: status_of_chat(pair.there, raw) == 429)
    assert time.monotonic() - answered < CACHE_TTL_S
    # The limits of a rotated key go on counting.
    new = owner.call("POST", f"{raw.split('-')[1]}/rotate/").json()["secret"]
    assert status_of_chat(pair.there, new) == 429
