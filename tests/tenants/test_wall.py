"""The wall.

Every route below /api/tenants/{t}/, whoever made it, asked by a stranger and by nobody.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from tenants.api.base import TenantView
from tenants.audit import Actor
from tenants.keys import create_key
from tests.factories import get_initech, make_alice, make_carol, make_oscar

pytestmark = pytest.mark.django_db

PREFIX = "api/tenants/<slug:tenant>/"
METHODS = ("get", "post", "put", "patch", "delete")
# What stands for a captured part of a path, by its converter.
SAMPLES = {"slug": "x", "str": "x", "int": "1", "uuid": "0" * 32, "path": "x"}


def walk(patterns: list[Any], prefix: str = "") -> Iterator[tuple[str, URLPattern]]:
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from walk(pattern.url_patterns, route)
        else:
            yield route, pattern


def tenant_routes() -> list[tuple[str, URLPattern]]:
    return [(route, one) for route, one in walk(get_resolver().url_patterns) if PREFIX in route]


def sample_url(route: str, tenant: str) -> str:
    url = route.replace("<slug:tenant>", tenant)
    while "<" in url:
        before, _, rest = url.partition("<")
        name, _, after = rest.partition(">")
        converter = name.partition(":")[0] if ":" in name else "str"
        url = before + SAMPLES.get(converter, "x") + after
    return f"/{url}"


def methods_of(pattern: URLPattern) -> list[str]:
    view = pattern.callback.view_class  # type: ignore[attr-defined]
    return [method for method in METHODS if hasattr(view, method)]


def test_it_works() -> None:
    routes = [route for route, _ in tenant_routes()]
    assert PREFIX in routes
    assert f"{PREFIX}keys/<slug:public_id>/" in routes
    assert f"{PREFIX}usage/export/" in routes


def test_every_route_is_a_tenant_view() -> None:
    for route, pattern in tenant_routes():
        view = getattr(pattern.callback, "view_class", object)
        assert issubclass(view, TenantView), f"{route}: {view} does not inherit TenantView"


def test_no_route_names_the_tenant_otherwise() -> None:
    for route, _ in walk(get_resolver().url_patterns):
        if route.startswith("api/tenants/") and route != "api/tenants/":
            assert route.startswith(PREFIX), route


def ask(client: Client, method: str, url: str, **headers: str) -> Any:
    return getattr(client, method)(url, headers=headers)


@pytest.mark.parametrize("tenant", ["acme", "nowhere"])
def test_strangers_find_nothing(tenant: str) -> None:
    """Carol, a key of hers, and for an absent tenant: the same 404."""
    make_alice()
    client = Client()
    client.force_login(make_carol())
    scopes = ["inference", "adapters", "usage", "admin"]
    key = create_key(Actor(get_initech().id, "system"), "k", scopes)
    bearer = {"Authorization": f"Bearer {key.raw}"}
    for route, pattern in tenant_routes():
        url = sample_url(route, tenant)
        for method in methods_of(pattern):
            for asker, headers in ((client, {}), (Client(), bearer)):
                answer = ask(asker, method, url, **headers)
                assert answer.status_code == 404, f"{method} {url}: {answer.status_code}"
                assert answer.json()["error"]["code"] == "not_found", f"{method} {url}"


def test_nobody_is_asked_to_sign_in() -> None:
    make_alice()
    for route, pattern in tenant_routes():
        for method in methods_of(pattern):
            url = sample_url(route, "acme")
            answer = ask(Client(), method, url)
            assert answer.status_code == 401, f"{method} {url}: {answer.status_code}"


def test_sessions_are_held_to_csrf() -> None:
    alice = make_alice()
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    for route, pattern in tenant_routes():
        for method in methods_of(pattern):
            if method != "get":
                answer = ask(client, method, sample_url(route, "acme"))
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
    for route, pattern in walk(get_resolver().url_patterns):
        if not route.startswith("api/") or route.startswith("api/schema") or "<" not in route:
            continue
        for url in hostile_urls(route):
            for method in methods_of(pattern):
                for client in (member, operator):
                    for body in BODIES if method in ("post", "put", "patch") else ("",):
                        options = {"data": body, "content_type": "application/json"}
                        answer = getattr(client, method)(url, **options if body else {})
                        assert answer.status_code < 500, f"{method} {url[:200]} {body[:20]}"
