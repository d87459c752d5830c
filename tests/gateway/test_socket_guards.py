"""What a WebSocket may take of a web process, and what an events socket lives through."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import override_settings
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tenants.events import publish
from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import Behaviour
from tests.gateway.live import Web, start_web, wait_for
from tests.gateway.test_websocket import BODY, close_code, hear, say, signed_in
from tests.services import free_port, start_valkey

LIMITS = {
    "MAX_SOCKETS_PER_TENANT": "3",
    "MAX_GENERATIONS_PER_SOCKET": "2",
    "SOCKET_IDLE_TIMEOUT_S": "2",
    "MAX_BODY_BYTES": "10000",
}


@pytest.fixture(scope="module")
def tight_web(running_stack: Stack) -> Iterator[Web]:
    urls = [one.url for one in running_stack.replicas]
    web = start_web(running_stack.folder, running_stack.database_url, urls, **LIMITS)
    yield web
    web.stop()


@pytest.fixture
def customer(stack: Stack, tight_web: Web) -> Customer:
    made = stack.make_customer()
    stack.activate(made, "support-bot")
    return Customer(tight_web, made.tenant, made.api_key)


def address(web: Web, path: str) -> str:
    return web.url.replace("http", "ws") + path


@contextlib.contextmanager
def dialled(customer: Customer) -> Iterator[ClientConnection]:
    headers = {"Authorization": f"Bearer {customer.api_key}"}
    with connect(address(customer.web, "/ws/v1/chat"), additional_headers=headers) as link:
        yield link


def test_maximum_sockets_of_a_tenant(stack: Stack, customer: Customer) -> None:
    other = stack.make_customer()
    with contextlib.ExitStack() as opened:
        links = [opened.enter_context(dialled(customer)) for _ in range(3)]
        for link in links:
            assert hear(link)["type"] == "ready"
        code, reason = close_code(opened.enter_context(dialled(customer)))
        assert (code, "3 sockets" in reason) == (4429, True)
        stranger = opened.enter_context(
            dialled(Customer(customer.web, other.tenant, other.api_key))
        )
        assert hear(stranger)["type"] == "ready"
        links[0].close()

        def is_let_in() -> bool:
            with dialled(customer) as link, contextlib.suppress(ConnectionClosed):
                return hear(link)["type"] == "ready"
            return False

        wait_for("the closed one's place", is_let_in)


def test_maximum_generations_of_a_socket(stack: Stack, customer: Customer) -> None:
    for replica in stack.replicas:
        replica.behaviour = Behaviour(silent_s=20)
    with dialled(customer) as link:
        assert hear(link)["type"] == "ready"
        for name in "abc":
            say(link, type="chat", id=name, body=BODY)
        frame = hear(link)
    assert (frame["id"], frame["error"]["code"]) == ("c", "too_many_generations")


@pytest.mark.parametrize("as_fragments", [False, True])
def test_a_frame_too_large(customer: Customer, as_fragments: bool) -> None:
    with dialled(customer) as link:
        assert hear(link)["type"] == "ready"
        parts = ["x" * 1000] * 11
        with contextlib.suppress(ConnectionClosed):
            link.send(parts if as_fragments else "".join(parts))
        assert close_code(link)[0] == 1009


@pytest.mark.case("C113")
def test_a_frame_too_deep(customer: Customer) -> None:
    for depth in (65, 1000, 1500):
        with dialled(customer) as link:
            assert hear(link)["type"] == "ready"
            link.send('{"a":' * depth + "1" + "}" * depth)
            assert close_code(link)[0] == 4400


@contextlib.contextmanager
def kept_awake(link: Any) -> Iterator[None]:
    """Pinged all the while, however long what is done meanwhile takes."""
    is_over = threading.Event()

    def ping() -> None:
        # What nobody reads would hold up the end of the connection.
        while not is_over.wait(0.3):
            say(link, type="ping")
            hear(link)

    pinging = threading.Thread(target=ping)
    pinging.start()
    try:
        yield
    finally:
        is_over.set()
        pinging.join()


def test_an_idle_socket_is_closed_a_busy_one_is_not(stack: Stack, customer: Customer) -> None:
    for replica in stack.replicas:
        replica.behaviour = Behaviour(silent_s=3)
    with dialled(customer) as idle, dialled(customer) as busy, dialled(customer) as pinging:
        begin = time.monotonic()
        with kept_awake(pinging):
            say(busy, type="chat", id="a", body=BODY)
            code, reason = close_code(idle)
            assert (code, "2 s" in reason) == (4408, True)
            # Not after the ten seconds that a caller has to say who they are.
            assert time.monotonic() - begin < 8
            frame = {"type": ""}
            while frame["type"] != "done":
                frame = hear(busy)
            assert time.monotonic() - begin > 2.9
        say(pinging, type="ping")
        assert hear(pinging)["type"] == "pong"


def test_protocol_pings_are_answered(customer: Customer) -> None:
    with dialled(customer) as link:
        assert link.ping().wait(5)


def test_sockets_that_never_say_who_they_are_keep_nobody_out(customer: Customer) -> None:
    """The oldest gives way to the 257th."""
    with contextlib.ExitStack() as opened:
        url = address(customer.web, "/ws/v1/chat")
        oldest = opened.enter_context(connect(url))
        for _ in range(256):
            opened.enter_context(connect(url, ping_interval=None))
        code, reason = close_code(oldest)
        assert (code, "came before" in reason) == (4401, True)
        assert hear(opened.enter_context(dialled(customer)))["type"] == "ready"


@contextlib.contextmanager
def own_store() -> Iterator[list[Any]]:
    """[its process, its URL]: a store that may be stopped."""
    running = list(start_valkey(free_port()))
    yield running
    running[0].kill()
    running[0].wait()


def tell(url: str, customer: Customer, adapter: str) -> None:
    layers = {
        "default": {
            "BACKEND": "channels_redis.core.RedisChannelLayer",
            "CONFIG": {"hosts": [url]},
        }
    }
    with override_settings(CHANNEL_LAYERS=layers):
        publish(customer.tenant.id, "profile.changed", {"adapter": adapter})


@pytest.mark.slow
def test_an_events_socket_outlives_its_store(stack: Stack, acme: Customer) -> None:
    """A store that was away, or too slow for the client's time-out, ended every page's socket."""
    with own_store() as store:
        url = store[1]
        web = start_web(stack.folder, stack.database_url, [stack.replicas[0].url], REDIS_URL=url)
        headers = signed_in(acme, stack) | {"Origin": web.url}
        with connect(address(web, "/ws/v1/events"), additional_headers=headers) as link:
            say(link, type="auth", tenant=acme.tenant.slug)
            assert hear(link) == {"type": "ready"}
            # Longer than the layer's blocking read.
            store[0].send_signal(signal.SIGSTOP)
            time.sleep(6)
            store[0].send_signal(signal.SIGCONT)
            tell(url, acme, "one")
            assert hear(link)["data"] == {"adapter": "one"}
            store[0].kill()
            store[0].wait()
            time.sleep(1)
            store[0] = start_valkey(int(url.split(":")[2].split("/")[0]))[0]
            # Its group is gone with the store: it joins again, and asks for what it missed.
            assert hear(link) == {"type": "missed"}
            tell(url, acme, "two")
            assert hear(link)["data"] == {"adapter": "two"}
        web.stop()
    assert "Traceback" not in web.log.read_text().split("Application startup complete")[1]
