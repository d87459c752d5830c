"""What raw ASGI and sockets answer about another tenant's things: what they answer about nothing.

The tables are walked as tests/endpoints.py says; what Django answers is in
tests/tenants/test_wall.py, and only timed here.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import requests

from gateway import front
from gateway.openai.app import PREFIXES, ROUTES
from tenants.audit import system
from tenants.keys import create_key
from tenants.models import KeyScope, Role
from tests.endpoints import (
    ABSENT,
    METHODS,
    Names,
    django_routes,
    every_row,
    make_things,
    masked,
    methods_of,
    pairs,
)
from tests.gateway.conftest import Customer, Stack
from tests.gateway.live import BASE_MODEL
from tests.gateway.test_websocket import close_code, hear, open_socket, say, signed_in

ALL_SCOPES = tuple(KeyScope.values)
KEYS = [*((scope,) for scope in KeyScope.values), ALL_SCOPES]
MESSAGES = [{"role": "user", "content": "Hi"}]
# Of medians of interleaved samples. A look-up that one of the two is spared is within it: the wall
# compares the statements. A second round trip, or a file that is read, is not.
MAX_RATIO = 1.5
NUM_SAMPLES = 3
MAX_ROUNDS = 20


def model_names(them: Names) -> list[str]:
    """All that a version could be called by who has seen it anywhere."""
    pinned = f"{them.name}@{them.number}"
    paths = [f"{them.tenant}/{them.name}", f"{BASE_MODEL}:{them.name}", f"/store/{them.digest}"]
    return [them.name, pinned, them.alias, them.digest, them.digest.upper(), *paths]


def chats(them: Names) -> list[dict[str, Any]]:
    bodies: list[dict[str, Any]] = [{"model": name} for name in model_names(them)]
    bodies += [{"model": BASE_MODEL, "lora_path": name} for name in model_names(them)]
    bodies += [{"model": them.name, "stream": True}]
    return [{"messages": MESSAGES, **body} for body in bodies]


def completions(them: Names) -> list[dict[str, Any]]:
    return [{"model": name, "prompt": "Hi"} for name in model_names(them)]


@dataclass(frozen=True)
class Call:
    path: str
    body: dict[str, Any] | None = None


# By path: what each asks about a tenant's things.
CALLS: dict[str, Callable[[Names], list[Call]]] = {
    "/v1/models": lambda them: [],
    "/v1/usage": lambda them: [],
    "/v1/organization/usage/completions": lambda them: [],
    "/v1/chat/completions": lambda them: [Call("/v1/chat/completions", b) for b in chats(them)],
    "/v1/completions": lambda them: [Call("/v1/completions", b) for b in completions(them)],
    "/v1/models/": lambda them: [Call(f"/v1/models/{name}") for name in model_names(them)],
}


@dataclass(frozen=True)
class Scene:
    """acme's things, served and just used; a stranger with a key of every kind."""

    stack: Stack
    stranger: Customer
    foreign: Names
    own: Names
    sessions: ExitStack

    def session(self, scopes: tuple[str, ...] = ALL_SCOPES) -> requests.Session:
        """Of a new key, which has been used before."""
        session = self.sessions.enter_context(requests.Session())
        key = create_key(system(self.stranger.tenant.id), "k", list(scopes))
        session.headers["authorization"] = f"Bearer {key.raw}"
        session.get(f"{self.stack.web.url}/v1/models", timeout=30)
        return session

    def ask(self, session: requests.Session, method: str, call: Call) -> requests.Response:
        url = self.stack.web.url + call.path
        return session.request(method, url, json=call.body, timeout=30)


@pytest.fixture
def scene(stack: Stack, acme: Customer) -> Iterator[Scene]:
    stranger = stack.make_customer()
    digest = stack.activate(acme, "other")
    foreign = make_things(acme.tenant, "secret-bot", 7001, digest)
    own = make_things(stranger.tenant, "own-bot", 1, "1" * 64)
    # Hot on a replica, and in this process's cache.
    acme.client().chat.completions.create(model="secret-bot", messages=MESSAGES)  # type: ignore[arg-type]
    acme.usage(1)
    for replica in stack.replicas:
        replica.bodies.clear()
    with ExitStack() as sessions:
        yield Scene(stack, stranger, foreign, own, sessions)


def calls(path: str, foreign: Names) -> Iterator[tuple[Call, Call]]:
    yield from zip(CALLS[path](foreign), CALLS[path](ABSENT), strict=True)


@pytest.mark.case("C84")
@pytest.mark.parametrize("scopes", KEYS, ids=" ".join)
def test_a_foreign_model_is_as_absent(scene: Scene, scopes: tuple[str, ...]) -> None:
    """A peer checked who may use a private adapter when it loaded it, and never again."""
    session, handlers = (
        scene.session(scopes),
        ROUTES | {p: found for p, (_, found) in PREFIXES.items()},
    )
    before = every_row()
    for path, method in itertools.product(handlers, map(str.upper, METHODS)):
        for both in calls(path, scene.foreign):
            foreign, absent = (scene.ask(session, method, call) for call in both)
            where = f"{method} {both[0]}: {foreign.status_code} {foreign.text}"
            assert foreign.status_code == absent.status_code, where
            assert masked(foreign.text, scene.foreign) == masked(absent.text, ABSENT), where
            names = [set(one.headers) for one in (foreign, absent)]
            assert names[0] == names[1], where
            if method == "OPTIONS":
                continue
            is_known = method in handlers[path] or (method == "HEAD" and "GET" in handlers[path])
            may = 404 if "inference" in scopes else 403
            assert foreign.status_code == (may if is_known else 405), where
    assert every_row() == before
    assert not [body for replica in scene.stack.replicas for body in replica.bodies]


def test_nothing_that_is_listed_is_another_tenants(scene: Scene) -> None:
    session = scene.session()
    for path in ["/v1/models", *front.PROBES]:
        answer = scene.ask(session, "GET", Call(path))
        assert answer.status_code == 200, path
        for word in scene.foreign.secrets():
            assert word not in answer.text, f"{path}: {word}"


def socket_routes() -> set[str]:
    """Of the router behind the middleware."""
    inner: Any = front.sockets
    while not hasattr(inner, "routes"):
        inner = inner.inner
    return {str(one.pattern).strip("^$?/") for one in inner.routes}


Hear = Callable[[Scene, Names, dict[str, str]], str]


def chat_as_a_visitor(scene: Scene, them: Names, headers: dict[str, str]) -> str:
    with open_socket(scene.stack, additional_headers=headers) as link:
        say(link, type="auth", tenant=them.tenant)
        return str(close_code(link))


def chat_with_models(scene: Scene, them: Names, headers: dict[str, str]) -> str:
    heard = []
    with open_socket(scene.stack, additional_headers=headers) as link:
        say(link, type="auth", tenant=scene.own.tenant)
        assert hear(link)["type"] == "ready"
        for number, body in enumerate(chats(them)):
            say(link, type="chat", id=str(number), body=body)
            heard.append(hear(link))
    assert {one["type"] for one in heard} == {"error"}
    return str(heard)


def events_as_a_visitor(scene: Scene, them: Names, headers: dict[str, str]) -> str:
    with open_socket(scene.stack, "/ws/v1/events", additional_headers=headers) as link:
        say(link, type="auth", tenant=them.tenant)
        return str(close_code(link))


SOCKETS: dict[str, list[Hear]] = {
    "ws/v1/chat": [chat_as_a_visitor, chat_with_models],
    "ws/v1/events": [events_as_a_visitor],
}


@pytest.mark.case("C84")
@pytest.mark.parametrize("role", Role.values)
def test_a_foreign_tenants_socket_is_as_absent(scene: Scene, role: str) -> None:
    headers = signed_in(scene.stranger, scene.stack, role)
    before = every_row()
    for route in socket_routes():
        for talk in SOCKETS[route]:
            foreign, absent = (talk(scene, them, headers) for them in (scene.foreign, ABSENT))
            assert masked(foreign, scene.foreign) == masked(absent, ABSENT), talk.__name__
    assert every_row() == before


def median_ratio(foreign: Callable[[], object], absent: Callable[[], object]) -> float:
    """Of the times that both take, asked in turn: what slows the machine down slows both. More
    rounds until it is within the bound, which chance may miss and a real difference never meets.
    """
    took: dict[Callable[[], object], list[float]] = {foreign: [], absent: []}
    ratio = 0.0
    for _ in range(MAX_ROUNDS):
        for one in (foreign, absent, absent, foreign) * NUM_SAMPLES:
            started = time.perf_counter()
            one()
            took[one].append(time.perf_counter() - started)
        ratio = statistics.median(took[foreign]) / statistics.median(took[absent])
        if 1 / MAX_RATIO < ratio < MAX_RATIO:
            break
    return ratio


def timed_calls(scene: Scene) -> Iterator[tuple[str, Call, Call]]:
    """Each model name once; every GET below /api and /v1/uploads, of the last place alone."""
    for path in CALLS:
        if pair := next(calls(path, scene.foreign), None):
            yield ("GET" if pair[0].body is None else "POST"), *pair
    for route, pattern in django_routes():
        if "get" in methods_of(pattern):
            for asks in pairs(route, "get", scene.own, scene.foreign, is_ours=False)[-1:]:
                foreign, absent = (Call(ask.url) for ask in asks)
                yield "GET", foreign, absent


@pytest.mark.case("C84")
def test_a_foreign_thing_takes_as_long_as_an_absent_one(scene: Scene) -> None:
    session, slow = scene.session(), []
    for method, *both in timed_calls(scene):
        foreign, absent = (partial(scene.ask, session, method, call) for call in both)
        ratio = median_ratio(foreign, absent)
        if not 1 / MAX_RATIO < ratio < MAX_RATIO:
            slow.append(f"{method} {both[0].path}: {ratio:.2f} times as long")
    assert not slow, "\n".join(slow)


@pytest.mark.case("C84")
def test_a_foreign_model_takes_as_long_on_a_socket(scene: Scene) -> None:
    key = {"authorization": str(scene.session().headers["authorization"])}
    with open_socket(scene.stack, additional_headers=key) as link:
        assert hear(link)["type"] == "ready"

        def ask(model: str) -> None:
            say(link, type="chat", id="a", body={"model": model, "messages": MESSAGES})
            assert hear(link)["error"]["code"] == "model_not_found"

        ratio = median_ratio(lambda: ask(scene.foreign.name), lambda: ask(ABSENT.name))
    assert 1 / MAX_RATIO < ratio < MAX_RATIO
