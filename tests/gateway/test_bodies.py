"""Many large bodies at once, before a real process: what they take is bounded, and small requests
are answered meanwhile.
"""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import Behaviour, FakeReplica
from tests.gateway.live import BASE_MODEL, Web, metric, start_web, wait_for

MAX_BODY_BYTES = 4 * 2**20
# Of which larger ones may fill three quarters: four of the largest.
MAX_BODIES_BYTES = 22 * 2**20
NUM_LARGEST = 4
NUM_CLIENTS = 48
REFUSED = 'grafthouse_refused_total{code="overloaded",type="server_error"}'


def body_of(num_bytes: int) -> bytes:
    """A chat whose messages are so large together."""
    chat = {"model": BASE_MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
    raw = json.dumps(chat).encode()
    return raw.replace(b'"Hi"', b'"' + b"x" * (num_bytes - len(raw) + 2) + b'"')


LARGE, SMALL = body_of(MAX_BODY_BYTES), body_of(1000)


@pytest.fixture(scope="module")
def running_crowded(running_stack: Stack) -> Iterator[Stack]:
    replica = FakeReplica()
    limits = {"MAX_BODIES_BYTES": str(MAX_BODIES_BYTES), "MAX_BODY_BYTES": str(MAX_BODY_BYTES)}
    web = start_web(running_stack.folder, running_stack.database_url, [replica.url], **limits)
    yield replace(running_stack, web=web, replicas=[replica])
    web.stop()
    replica.close()


@pytest.fixture
def crowded(stack: Stack, running_crowded: Stack) -> Stack:
    running_crowded.replicas[0].behaviour = Behaviour()
    return running_crowded


@pytest.fixture
def customer(crowded: Stack) -> Customer:
    return crowded.make_customer(scopes=("inference", "admin"))


def chat(customer: Customer, raw: bytes, is_chunked: bool = False) -> requests.Response:
    parts = (raw[start : start + 2**16] for start in range(0, len(raw), 2**16))
    return requests.post(
        f"{customer.web.url}/v1/chat/completions",
        data=parts if is_chunked else raw,
        headers={"authorization": f"Bearer {customer.api_key}"},
        timeout=60,
    )


def insist(customer: Customer) -> None:
    """Whoever was answered last may not have left yet."""
    while chat(customer, LARGE).status_code == 503:
        time.sleep(0.1)


def hold(crowded: Stack, customer: Customer, num_requests: int) -> list[threading.Thread]:
    """So many of the largest, which a silent replica keeps for as long as nobody lets them go."""
    [replica] = crowded.replicas
    replica.behaviour = Behaviour(silent_s=10.0)
    threads = [threading.Thread(target=insist, args=(customer,)) for _ in range(num_requests)]
    for thread in threads:
        thread.start()
    wait_for("the requests", lambda: replica.num_running == num_requests)
    replica.behaviour = Behaviour()
    return threads


def check_refusal(answer: requests.Response) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
    assert (answer.headers["retry-after"], answer.headers["connection"]) == ("1", "close")


@pytest.mark.case("C112")
def test_it_works(crowded: Stack, customer: Customer) -> None:
    """No peer bounds the sum: so many clients, so many times the limit of one."""
    holding = hold(crowded, customer, NUM_LARGEST)
    for is_chunked in (False, True):
        check_refusal(chat(customer, LARGE, is_chunked))
        assert chat(customer, SMALL, is_chunked).status_code == 200
    for thread in holding:
        thread.join()
    # All of it is given back, also by those that were refused in their middle.
    holding = hold(crowded, customer, NUM_LARGEST)
    for thread in holding:
        thread.join()
    assert chat(customer, LARGE, is_chunked=True).status_code == 200


@pytest.mark.case("C112")
def test_what_goes_to_django_counts_too(crowded: Stack, customer: Customer) -> None:
    """Also a stranger's body: it is spooled before anybody asks who they are."""
    holding = hold(crowded, customer, NUM_LARGEST)
    url = f"{customer.web.url}/api/tenants/{customer.tenant.slug}/keys/"
    headers = {"content-type": "application/json"}
    for more in ({}, {"authorization": f"Bearer {customer.api_key}"}):
        check_refusal(requests.post(url, data=LARGE, headers=headers | more, timeout=60))
    small = requests.post(
        url,
        json={"name": "x", "scopes": ["inference"]},
        headers={"authorization": f"Bearer {customer.api_key}"},
        timeout=60,
    )
    assert small.status_code == 201
    for thread in holding:
        thread.join()


def large_status(customer: Customer) -> int:
    """0: cut while it was still sent, as what is refused is read on for a moment only."""
    try:
        return chat(customer, LARGE).status_code
    except requests.ConnectionError:
        return 0


def begin(customer: Customer) -> http.client.HTTPConnection:
    """A large body, announced, of which a quarter is sent."""
    where = urlsplit(customer.web.url)
    link = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
    link.putrequest("POST", "/v1/chat/completions")
    link.putheader("authorization", f"Bearer {customer.api_key}")
    link.putheader("content-length", str(len(LARGE)))
    link.endheaders(LARGE[: 2**20])
    return link


def test_who_leaves_in_the_middle_of_a_body_holds_nothing(customer: Customer) -> None:
    for _ in range(2):
        with ExitStack() as links:
            for _ in range(NUM_LARGEST):
                links.enter_context(closing(begin(customer)))
            wait_for("a full house", partial(is_full, customer, links), timeout_s=60)
        wait_for("room", lambda: large_status(customer) == 200, timeout_s=60)


def is_full(customer: Customer, links: ExitStack) -> bool:
    """If not, one more begins: whoever was answered last had not left yet when another came."""
    if large_status(customer) in {0, 503}:
        return True
    links.enter_context(closing(begin(customer)))
    return False


def peak_bytes(web: Web) -> int:
    """The most that its process has had in memory."""
    text = Path(f"/proc/{web.process.pid}/status").read_text()
    [line] = [line for line in text.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


@pytest.mark.case("C112")
def test_memory_under_many_at_once(crowded: Stack, customer: Customer) -> None:
    """Unbounded, these clients took 235 MiB."""
    chat(customer, LARGE)
    before, refused = peak_bytes(crowded.web), metric(crowded.web, REFUSED)
    crowded.replicas[0].behaviour = Behaviour(silent_s=1.0)
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(chat(customer, LARGE).status_code))
        for _ in range(NUM_CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(statuses) == NUM_CLIENTS and set(statuses) == {200, 503}
    assert metric(crowded.web, REFUSED) == refused + statuses.count(503)
    grown = peak_bytes(crowded.web) - before
    print(f"{statuses.count(200)} of {NUM_CLIENTS} answered, {grown / 2**20:.0f} MiB more")
    assert grown < 3 * MAX_BODIES_BYTES
