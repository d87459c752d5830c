"""The wall.

Every route that Django answers, whoever made it, asked by strangers, by nobody, and by who means
harm. What raw ASGI and sockets answer is in tests/gateway/test_isolation.py.
"""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import URLPattern, get_resolver

from adapters.access import resolve
from tenants.api.base import TenantView
from tenants.audit import system
from tenants.auth import authenticate_key
from tenants.errors import ApiError
from tenants.keys import create_key
from tenants.models import KeyScope, Role
from tests.endpoints import (
    ABSENT,
    METHODS,
    OWN_NAMESPACE,
    Ask,
    Names,
    ask_for,
    django_routes,
    every_row,
    kind,
    make_things,
    masked,
    methods_of,
    pairs,
    walk,
)
from tests.factories import (
    add_member,
    get_acme,
    get_initech,
    make_alice,
    make_oscar,
    make_user,
)

pytestmark = pytest.mark.django_db

PREFIX = "api/tenants/<slug:tenant>/"
ACME = dataclasses.replace(ABSENT, tenant="acme")


def tenant_routes() -> list[tuple[str, URLPattern]]:
    return [(route, one) for route, one in django_routes() if PREFIX in route]


def url_of(route: str) -> str:
    """Of nothing in acme."""
    return ask_for(route, "get", ACME, ACME, 0).url


def test_it_works() -> None:
    routes = [route for route, _ in tenant_routes()]
    assert PREFIX in routes
    assert f"{PREFIX}keys/<slug:public_id>/" in routes
    assert f"{PREFIX}usage/export/" in routes


def test_no_route_is_beside_the_sweep() -> None:
    """Django's admin is the operators'; the last two are an error and the browser's pages."""
    swept = {route for route, _ in django_routes()}
    routes = [route for route, _ in walk(get_resolver().url_patterns)]
    rest = [one for one in routes if one not in swept and not one.startswith("admin/")]
    assert rest == [r"^api(?:/.*)?$", r"^(?!static/).*$"]


def test_every_route_is_a_tenant_view() -> None:
    for route, pattern in tenant_routes():
        view = getattr(pattern.callback, "view_class", object)
        assert issubclass(view, TenantView), f"{route}: {view} does not inherit TenantView"


def test_no_route_names_the_tenant_otherwise() -> None:
    for route, _ in django_routes():
        if route.startswith("api/tenants/") and route != "api/tenants/":
            assert route.startswith(PREFIX), route


@dataclass(frozen=True)
class Stranger:
    """Who asks, and whether all is allowed them, so that what is refused is not there."""

    client: Client = field(default_factory=Client)
    headers: dict[str, str] = field(default_factory=dict)
    may_all: bool = False
    is_operator: bool = False


ALL_SCOPES = " ".join(KeyScope.values)
STRANGERS = [*Role.values, "operator", *(f"key {one}" for one in (*KeyScope.values, ALL_SCOPES))]


def make_stranger(who: str) -> Stranger:
    """A member of initech by role, a key of it by scopes, or the operator."""
    initech = get_initech()
    if who.startswith("key "):
        key = create_key(system(initech.id), "k", who.split()[1:])
        bearer = {"Authorization": f"Bearer {key.raw}"}
        # Its first use is written down.
        authenticate_key(key.raw)
        return Stranger(headers=bearer, may_all=who == f"key {ALL_SCOPES}")
    found = Stranger(may_all=who == Role.OWNER, is_operator=who == "operator")
    user = make_oscar() if found.is_operator else make_user(f"their-{who}")
    if not found.is_operator:
        add_member(initech, user, who)
    found.client.force_login(user)
    return found


@dataclass(frozen=True)
class Seen:
    """What an ask came to: the answer, and the statements that the database was asked."""

    status: int
    text: str
    statements: list[str]

    @property
    def writes(self) -> list[str]:
        return [one for one in self.statements if one.split()[0] in ("INSERT", "UPDATE", "DELETE")]


LITERAL = re.compile(r"'[^']*'|\b\d+\b")


def look(stranger: Stranger, ask: Ask) -> Seen:
    """Undone afterwards: a thing of the caller's own is made for the next ask too."""
    call = getattr(stranger.client, ask.method)
    options: dict[str, Any] = {} if ask.body is None else {"data": ask.body}
    if ask.body is not None and not ask.is_multipart:
        options["content_type"] = "application/json"
    with CaptureQueriesContext(connection) as captured, transaction.atomic():
        answer = call(ask.url, headers=stranger.headers, **options)
        text = b"".join(answer) if answer.streaming else answer.content
        transaction.set_rollback(True)
    asked = [LITERAL.sub("?", one["sql"]) for one in captured.captured_queries]
    own = [one for one in asked if "SAVEPOINT" not in one]
    return Seen(answer.status_code, text.decode(), own)


def sweep(stranger: Stranger, own: Names, foreign: Names) -> Iterator[tuple[str, str, list[Ask]]]:
    """(route, method, [for the foreign thing, for an absent one]). The methods that a view has not
    are tried by the key that may all.
    """
    for route, pattern in django_routes():
        if route.startswith("api/schema"):
            continue
        known = methods_of(pattern)
        for method in METHODS if stranger.may_all and stranger.headers else known:
            for number, pair in enumerate(pairs(route, method, own, foreign, method in known)):
                # An operator looks into every tenant, and keeps the fleet.
                may_look = stranger.is_operator and (number == 0 or "fleet" in route)
                if not may_look:
                    yield route, method, pair


@pytest.fixture
def things() -> tuple[Names, Names]:
    """(the strangers', another tenant's)."""
    own = make_things(get_initech(), "own-bot", 1, "1" * 64)
    return own, make_things(get_acme(), "secret-bot", 7001, "7" * 64)


@pytest.mark.case("C84")
@pytest.mark.parametrize("who", STRANGERS)
def test_a_foreign_thing_is_as_absent(who: str, things: tuple[Names, Names]) -> None:
    """Once hot, a peer's private adapter was anyone's who knew its name; here no name, id or number
    of another tenant's gives another answer, asks the database otherwise (and so takes another
    time), or writes anything.
    """
    stranger = make_stranger(who)
    before, faults = every_row(), []
    for route, method, pair in sweep(stranger, *things):
        foreign, absent = (look(stranger, ask) for ask in pair)
        what = fault(foreign, absent, kind(method, route) in OWN_NAMESPACE, things[1])
        if stranger.may_all and not is_hidden(stranger, route, pair, foreign):
            what = what or f"it is not hidden: {foreign.status} {foreign.text}"
        if what:
            faults.append(f"{method} {pair[0].url} {pair[0].body}: {what}")
    assert not faults, "\n".join(faults)
    assert every_row() == before


def fault(foreign: Seen, absent: Seen, is_own_namespace: bool, them: Names) -> str:
    """What the two answers tell, or did, that they must not; empty for nothing."""
    if foreign.status != absent.status:
        return f"{foreign.status}, and {absent.status} for an absent one"
    if foreign.statements != absent.statements:
        return f"{foreign.statements}\n  and for an absent one {absent.statements}"
    if is_own_namespace:
        return ""
    if masked(foreign.text, them) != masked(absent.text, ABSENT):
        return f"{foreign.text}, and {absent.text} for an absent one"
    return f"it wrote {foreign.writes}" if foreign.writes else ""


def is_hidden(stranger: Stranger, route: str, pair: list[Ask], seen: Seen) -> bool:
    """Whether it says that there is no such thing, which who may all must be told."""
    if kind(pair[0].method, route) in OWN_NAMESPACE or pair[0].method == "options":
        return True
    if "fleet" in route:
        return seen.status == 403
    if route.startswith("v1/") and not stranger.headers:
        return seen.status == 401
    if pair[0].url == pair[1].url:
        # The body alone named it.
        return seen.status in (400, 404)
    return seen.status in (404, 405)


@pytest.mark.parametrize("who", [one for one in STRANGERS if one != "operator"])
def test_what_lists_names_nothing_of_another_tenants(who: str, things: tuple[Names, Names]) -> None:
    stranger, (own, foreign) = make_stranger(who), things
    num_listed = 0
    for route, _ in django_routes():
        place = route.count("<")
        seen = look(stranger, ask_for(route, "get", own, own, place, is_ours=False))
        num_listed += seen.status == 200
        for word in foreign.secrets():
            assert word not in seen.text, f"{who}: {route}: {word}"
    assert num_listed > 1


@pytest.mark.case("C84")
def test_a_model_name_is_looked_up_alike_whoever_has_it(things: tuple[Names, Names]) -> None:
    _, foreign = things
    made = create_key(system(get_initech().id), "k", ["inference"])
    caller = authenticate_key(made.raw)

    def look_up(model: str) -> tuple[list[str], str]:
        with CaptureQueriesContext(connection) as captured, pytest.raises(ApiError) as caught:
            resolve(caller, model)
        asked = [LITERAL.sub("?", one["sql"]) for one in captured.captured_queries]
        return asked, caught.value.message.replace(model, "…")

    for shape in ("{0.name}", "{0.name}@{0.number}", "{0.alias}", "{0.digest}", "{0.tenant}/x"):
        assert look_up(shape.format(foreign)) == look_up(shape.format(ABSENT)), shape


def test_nobody_is_asked_to_sign_in() -> None:
    make_alice()
    for route, pattern in tenant_routes():
        for method in methods_of(pattern):
            answer = getattr(Client(), method)(url_of(route))
            assert answer.status_code == 401, f"{method} {route}: {answer.status_code}"


def test_sessions_are_held_to_csrf() -> None:
    alice = make_alice()
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    for route, pattern in tenant_routes():
        for method in methods_of(pattern):
            if method != "get":
                answer = getattr(client, method)(url_of(route))
                assert answer.status_code == 403, f"{method} {route}: {answer.status_code}"


# In the place of a captured part of a path, by its converter.
HOSTILE = {"str": ("%00", "x" * 5000, "%F0%9F%8C%B1"), "slug": ("x" * 5000,), "int": ("9" * 40,)}
BODIES = ("", "null", "[]", '"x"', "{}", '{"name": "\\u0000"}', "{" * 2000)


def hostile_urls(route: str) -> Iterator[str]:
    parts = re.findall(r"<(\w+):\w+>", route.replace("<slug:tenant>", "acme"))
    samples = [HOSTILE.get(converter, ("x",)) for converter in parts]
    for number in range(max(map(len, samples), default=1)):
        url = route.replace("<slug:tenant>", "acme")
        for converter, values in zip(parts, samples, strict=True):
            value = values[number % len(values)]
            url = re.sub(rf"<{converter}:\w+>", value.replace("\\", ""), url, count=1)
        yield f"/{url}"


# What the database refuses ends its transaction: each request has its own.
@pytest.mark.django_db(transaction=True)
def test_nothing_in_a_path_or_a_body_breaks_the_house() -> None:
    """Asked by a member who may everything, and by an operator."""
    member, operator = Client(), Client()
    member.force_login(make_alice())
    operator.force_login(make_oscar())
    for route, pattern in django_routes():
        if not route.startswith("api/") or route.startswith("api/schema") or "<" not in route:
            continue
        for url in hostile_urls(route):
            for method in methods_of(pattern):
                for client in (member, operator):
                    for body in BODIES if method in ("post", "put", "patch") else ("",):
                        options = {"data": body, "content_type": "application/json"}
                        answer = getattr(client, method)(url, **options if body else {})
                        assert answer.status_code < 500, f"{method} {url[:200]} {body[:20]}"
