"""/ws/v1/chat and /ws/v1/events with a plain WebSocket client."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tenants.audit import system
from tenants.events import publish
from tenants.keys import revoke_key
from tenants.models import Member, Role
from tenants.scope import tenant_scope
from tests.factories import add_member, make_user
from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import PROMPT_TOKENS, Behaviour
from tests.gateway.live import wait_for

BODY = {"model": "support-bot", "messages": [{"role": "user", "content": "Hi"}]}
TEXT = "Hello world! ✓"


@contextlib.contextmanager
def open_socket(
    stack: Stack, path: str = "/ws/v1/chat", **options: Any
) -> Iterator[ClientConnection]:
    url = stack.web.url.replace("http", "ws") + path
    with connect(url, **({"max_queue": 2} | options)) as link:
        yield link


def signed_in(customer: Customer, stack: Stack, role: str = Role.DEVELOPER) -> dict[str, str]:
    """Headers of a browser with a session of a member."""
    user = make_user(f"user-{time.monotonic_ns()}")
    add_member(customer.tenant, user, role)
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    return {"Cookie": f"sessionid={session.session_key}", "Origin": stack.web.url}


def hang_up(link: ClientConnection) -> None:
    """The connection is gone without a closing handshake."""
    link.socket.shutdown(socket.SHUT_RDWR)


def say(link: ClientConnection, **frame: Any) -> None:
    link.send(json.dumps(frame))


def hear(link: ClientConnection) -> dict[str, Any]:
    frame: dict[str, Any] = json.loads(link.recv(timeout=10))
    return frame


@contextlib.contextmanager
def chat_socket(stack: Stack, customer: Customer) -> Iterator[ClientConnection]:
    with open_socket(stack) as link:
        say(link, type="auth", api_key=customer.api_key)
        assert hear(link) == {"type": "ready", "tenant": customer.tenant.slug}
        yield link


def answer_of(link: ClientConnection, name: str) -> tuple[str, dict[str, Any]]:
    """(the text, the last frame) of one generation that is alone on its link."""
    text = ""
    while (frame := hear(link))["type"] == "chunk":
        assert frame["id"] == name
        text += frame["data"]["choices"][0]["delta"].get("content", "")
    assert frame["id"] == name
    return text, frame


def close_code(link: ClientConnection) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed) as caught:
        # The client itself waits ten seconds for the end of a connection.
        while True:
            link.recv(timeout=20)
    assert caught.value.rcvd
    return caught.value.rcvd.code, caught.value.rcvd.reason


def test_it_works(stack: Stack, acme: Customer) -> None:
    with chat_socket(stack, acme) as link:
        say(link, type="chat", id="a", body=BODY)
        text, last = answer_of(link, "a")
    assert text == TEXT
    assert last["type"] == "done"
    assert last["usage"]["completion_tokens"] == 5
    [row] = acme.usage(1)
    assert (row.status, row.completion_tokens) == ("finished", 5)


def test_auth_by_header(stack: Stack, acme: Customer) -> None:
    headers = {"Authorization": f"Bearer {acme.api_key}"}
    with open_socket(stack, additional_headers=headers) as link:
        assert hear(link)["type"] == "ready"
        say(link, type="chat", id="a", body=BODY)
        assert answer_of(link, "a")[0] == TEXT


def test_auth_by_session(stack: Stack, acme: Customer) -> None:
    with open_socket(stack, additional_headers=signed_in(acme, stack)) as link:
        say(link, type="auth", tenant=acme.tenant.slug)
        assert hear(link)["type"] == "ready"
        say(link, type="chat", id="a", body=BODY)
        assert answer_of(link, "a")[0] == TEXT
    assert acme.usage(1)[0].user is not None


def test_a_session_is_of_no_use_to_another_origin(stack: Stack, acme: Customer) -> None:
    headers = signed_in(acme, stack)
    for origin in ("https://evil.example", "null", ""):
        with open_socket(stack, additional_headers=headers | {"Origin": origin}) as link:
            say(link, type="auth", tenant=acme.tenant.slug)
            assert close_code(link)[0] == 4401


def test_a_session_is_of_no_use_for_another_tenant(
    stack: Stack, acme: Customer, globex: Customer
) -> None:
    for path in ("/ws/v1/chat", "/ws/v1/events"):
        reasons = set()
        for slug in (globex.tenant.slug, "no-such-tenant"):
            with open_socket(stack, path, additional_headers=signed_in(acme, stack)) as link:
                say(link, type="auth", tenant=slug)
                code, reason = close_code(link)
                assert code == 4401
                reasons.add(reason.replace(slug, "…"))
        assert len(reasons) == 1


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "auth", "api_key": "gh-nope"},
        {"type": "auth"},
        {"type": "auth", "api_key": "x", "tenant": "y"},
        {"type": "auth", "tenant": "acme"},
        {"type": "chat", "id": "a", "body": BODY},
    ],
)
def test_not_authenticated(stack: Stack, frame: dict[str, Any]) -> None:
    with open_socket(stack) as link:
        say(link, **frame)
        assert close_code(link)[0] == 4401


def test_a_bad_header_key(stack: Stack) -> None:
    with open_socket(stack, additional_headers={"Authorization": "Bearer gh-no"}) as link:
        assert close_code(link)[0] == 4401


@pytest.mark.parametrize(
    "raw", ["{", "[]", '"x"', "", b"\x00", '{"type": "nope"}', '{"type": "chat", "body": {}}']
)
def test_bad_frames(stack: Stack, acme: Customer, raw: str | bytes) -> None:
    with chat_socket(stack, acme) as link:
        link.send(raw)
        assert close_code(link)[0] == 4400


def test_unknown_paths_are_refused(stack: Stack) -> None:
    with pytest.raises(InvalidStatus) as caught, open_socket(stack, "/ws/v1/nope"):
        pass
    assert caught.value.response.status_code == 403


def test_ping(stack: Stack, acme: Customer) -> None:
    with chat_socket(stack, acme) as link:
        say(link, type="ping")
        assert hear(link) == {"type": "pong"}


def test_errors_are_openais(stack: Stack, acme: Customer) -> None:
    with chat_socket(stack, acme) as link:
        for body, code in (
            (BODY | {"model": "nope"}, "model_not_found"),
            (BODY | {"messages": []}, "invalid_request"),
            ("x", "invalid_request"),
        ):
            say(link, type="chat", id="a", body=body)
            _, frame = answer_of(link, "a")
            assert list(frame["error"]) == ["message", "type", "param", "code"]
            assert frame["error"]["code"] == code
        # And the link still serves.
        say(link, type="chat", id="a", body=BODY)
        assert answer_of(link, "a")[0] == TEXT


def test_several_at_once(stack: Stack, acme: Customer) -> None:
    for replica in stack.replicas:
        replica.behaviour = Behaviour(token_interval_s=0.02)
    texts = dict.fromkeys("abcde", "")
    kinds = []
    with chat_socket(stack, acme) as link:
        for name in texts:
            say(link, type="chat", id=name, body=BODY)
        order = []
        while kinds.count("done") < len(texts):
            frame = hear(link)
            kinds.append(frame["type"])
            if frame["type"] == "chunk":
                order.append(frame["id"])
                delta = frame["data"]["choices"][0]["delta"]
                texts[frame["id"]] += delta.get("content", "")
    assert set(texts.values()) == {TEXT}
    assert order != sorted(order), "they ran one after the other"
    assert len(acme.usage(5)) == 5


def test_cancel(stack: Stack, acme: Customer) -> None:
    for replica in stack.replicas:
        replica.behaviour = Behaviour(tokens=["x"] * 500, token_interval_s=0.02)
    with chat_socket(stack, acme) as link:
        say(link, type="chat", id="a", body=BODY)
        for _ in range(5):
            assert hear(link)["type"] == "chunk"
        say(link, type="cancel", id="a")
        _, last = answer_of(link, "a")
        assert last["error"]["code"] == "cancelled"
        say(link, type="cancel", id="a")
        say(link, type="ping")
        assert hear(link) == {"type": "pong"}
    [row] = acme.usage(1)
    assert (row.status, row.prompt_tokens) == ("cancelled", PROMPT_TOKENS)
    assert row.completion_tokens and row.completion_tokens >= 4


def test_limits_of_a_socket(stack: Stack, acme: Customer) -> None:
    for replica in stack.replicas:
        replica.behaviour = Behaviour(silent_s=20)
    with chat_socket(stack, acme) as link:
        for number in range(16):
            say(link, type="chat", id=str(number), body=BODY)
        say(link, type="chat", id="16", body=BODY)
        assert hear(link)["error"]["code"] == "too_many_generations"
        say(link, type="cancel", id="3")
        assert hear(link)["error"]["code"] == "cancelled"
        say(link, type="chat", id="4", body=BODY)
        assert hear(link)["error"]["code"] == "id_in_use"
    wait_for("the aborts", lambda: not sum(one.num_running for one in stack.replicas))


def test_a_socket_that_goes_away_settles(stack: Stack) -> None:
    customer = stack.make_customer(max_concurrency=2)
    stack.activate(customer, "support-bot")
    for replica in stack.replicas:
        replica.behaviour = Behaviour(tokens=["x"] * 500, token_interval_s=0.02)
    with chat_socket(stack, customer) as link:
        for name in "ab":
            say(link, type="chat", id=name, body=BODY)
        for _ in range(10):
            hear(link)
        hang_up(link)
    wait_for("the aborts", lambda: not sum(one.num_running for one in stack.replicas))
    assert [row.status for row in customer.usage(2)] == ["cancelled"] * 2
    for replica in stack.replicas:
        replica.behaviour = Behaviour()
    with chat_socket(stack, customer) as again:
        say(again, type="chat", id="c", body=BODY)
        assert answer_of(again, "c")[0] == TEXT


def narrow_connection(stack: Stack) -> socket.socket:
    """A connection whose kernel buffers hold little, so that back-pressure shows soon."""
    where = urlsplit(stack.web.url)
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    raw.connect((where.hostname, where.port))
    return raw


def test_a_reader_that_stops_holds_up_only_itself(stack: Stack, acme: Customer) -> None:
    for replica in stack.replicas:
        replica.behaviour = Behaviour(tokens=["x" * 50_000] * 2000)
    headers = {"Authorization": f"Bearer {acme.api_key}"}
    raw = narrow_connection(stack)
    # Compressed, 100 MB of one letter would fit the kernel's buffers.
    options = {"sock": raw, "additional_headers": headers, "compression": None}
    with open_socket(stack, **options) as slow:
        assert hear(slow)["type"] == "ready"
        say(slow, type="chat", id="a", body=BODY | {"max_tokens": 2000})
        time.sleep(1)
        assert sum(one.num_running for one in stack.replicas) == 1
        for replica in stack.replicas:
            replica.behaviour = Behaviour()
        with chat_socket(stack, acme) as link:
            say(link, type="chat", id="b", body=BODY)
            assert answer_of(link, "b")[0] == TEXT
        # 100 MB would long be through: the replica is being held back.
        assert sum(one.num_running for one in stack.replicas) == 1
        hang_up(slow)
    wait_for("the abort", lambda: not sum(one.num_running for one in stack.replicas))


@pytest.mark.case("C117")
def test_an_open_socket_of_a_revoked_key(stack: Stack, acme: Customer) -> None:
    with chat_socket(stack, acme) as link:
        revoke_key(system(acme.tenant.id), acme.api_key.split("-")[1])
        time.sleep(1)
        say(link, type="chat", id="a", body=BODY)
        assert hear(link)["error"]["code"] == "invalid_api_key"
        code, reason = close_code(link)
    assert (code, reason[:17]) == (4401, "Incorrect API key")


@pytest.mark.case("C117")
def test_what_runs_when_a_key_is_revoked_ends_whole(stack: Stack, acme: Customer) -> None:
    for replica in stack.replicas:
        replica.behaviour = Behaviour(tokens=["x"] * 20, token_interval_s=0.1)
    with chat_socket(stack, acme) as link:
        say(link, type="chat", id="a", body=BODY)
        assert hear(link)["type"] == "chunk"
        revoke_key(system(acme.tenant.id), acme.api_key.split("-")[1])
        time.sleep(1)
        say(link, type="chat", id="b", body=BODY)
        ends = {}
        while len(ends) < 2:
            frame = hear(link)
            if frame["type"] != "chunk":
                ends[frame["id"]] = frame["type"]
        assert ends == {"b": "error", "a": "done"}
        assert close_code(link)[0] == 4401
    assert [row.status for row in acme.usage(1)] == ["finished"]


@contextlib.contextmanager
def events_socket(stack: Stack, customer: Customer) -> Iterator[ClientConnection]:
    headers = signed_in(customer, stack)
    with open_socket(stack, "/ws/v1/events", additional_headers=headers) as link:
        say(link, type="auth", tenant=customer.tenant.slug)
        assert hear(link) == {"type": "ready"}
        yield link


def test_events_reach_their_tenant_alone(stack: Stack, acme: Customer, globex: Customer) -> None:
    with events_socket(stack, acme) as ours, events_socket(stack, globex) as theirs:
        data = {"adapter": "support-bot", "number": 2, "state": "active"}
        publish(acme.tenant.id, "version.changed", data)
        publish(globex.tenant.id, "adapter.changed", {"adapter": "x"})
        assert hear(ours) == {"type": "event", "event": "version.changed", "data": data}
        assert hear(theirs)["event"] == "adapter.changed"


def test_usage_is_an_event(stack: Stack, acme: Customer) -> None:
    with events_socket(stack, acme) as link:
        acme.client().chat.completions.create(**BODY)  # type: ignore[call-overload]
        frame = hear(link)
    assert (frame["event"], frame["data"]) == ("usage.recorded", {"adapter": "support-bot"})


def test_a_removed_member_hears_no_more(stack: Stack, acme: Customer) -> None:
    with events_socket(stack, acme) as link:
        with tenant_scope(acme.tenant.id):
            Member.objects.all().delete()
        time.sleep(1.1)
        publish(acme.tenant.id, "adapter.changed", {"adapter": "x"})
        assert close_code(link)[0] == 4401


def test_events_need_a_session(stack: Stack, acme: Customer) -> None:
    with open_socket(stack, "/ws/v1/events") as link:
        say(link, type="auth", tenant=acme.tenant.slug)
        assert close_code(link)[0] == 4401
