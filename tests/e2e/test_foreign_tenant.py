"""Tenant B asks for what is tenant A's: the same 404 as for what is not there."""

import asyncio
import json
from typing import Any

import openai
import pytest
import websockets

from tests.e2e.house import House, Member

pytestmark = [pytest.mark.demo, pytest.mark.slow]
HELLO: Any = [{"role": "user", "content": "Hello"}]


def foreign(member: Member, slug: str, method: str, path: str, **kwargs: Any) -> tuple[int, str]:
    headers = {"X-CSRFToken": member.session.cookies["csrftoken"], "Referer": member.url}
    where = f"{member.url}/api/tenants/{slug}/{path}"
    answer = member.session.request(method, where, headers=headers, timeout=30, **kwargs)
    return answer.status_code, answer.text.replace(slug, "{t}")


@pytest.mark.case("C84")
def test_every_kind_of_object_is_404(acme: Member, globex: Member) -> None:
    name = acme.adapters[0]
    number = acme.get(f"adapters/{name}/")["active_version"]["number"]
    key = acme.get("keys/")["results"][0]["public_id"]
    paths = [
        ("GET", ""),
        ("GET", "adapters/"),
        ("GET", f"adapters/{name}/"),
        ("DELETE", f"adapters/{name}/"),
        ("GET", f"adapters/{name}/versions/"),
        ("GET", f"adapters/{name}/versions/{number}/"),
        ("POST", f"adapters/{name}/versions/{number}/activate/"),
        ("GET", "keys/"),
        ("DELETE", f"keys/{key}/"),
        ("GET", "usage/"),
        ("GET", "usage/summary/"),
        ("GET", "usage/export/?format=csv"),
        ("GET", "audit/"),
    ]
    for method, path in paths:
        theirs = foreign(globex, acme.slug, method, path)
        absent = foreign(globex, "no-such-tenant", method, path)
        assert theirs == absent, (method, path)
        assert theirs[0] == 404, (method, path)
    assert acme.get(f"adapters/{name}/")["active_version"]["number"] == number


@pytest.mark.case("C84")
def test_an_adapter_hot_in_memory_is_404_to_a_stranger(acme: Member, globex: Member) -> None:
    name = acme.adapters[0]
    active = acme.get(f"adapters/{name}/")["active_version"]
    client = globex.client(max_retries=0)
    bodies = set()
    for model in (name, f"{name}@{active['number']}", active["digest"], "no-such-model"):
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model=model, messages=HELLO)
        bodies.add(str(caught.value.body).replace(model, "…"))
    assert len(bodies) == 1, bodies
    assert name not in {model.id for model in client.models.list()}


async def events_status(url: str, session_id: str, slug: str) -> Any:
    where = url.replace("http", "ws", 1) + "/ws/v1/events"
    headers = {"Cookie": f"sessionid={session_id}", "Origin": url}
    async with websockets.connect(where, additional_headers=headers) as socket:
        await socket.send(json.dumps({"type": "auth", "tenant": slug}))
        try:
            return json.loads(await asyncio.wait_for(socket.recv(), 10))
        except websockets.ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else None


def test_another_tenants_events_are_closed(house: House, acme: Member, globex: Member) -> None:
    session_id = globex.session.cookies["sessionid"]
    assert asyncio.run(events_status(house.url, session_id, globex.slug)) == {"type": "ready"}
    assert asyncio.run(events_status(house.url, session_id, acme.slug)) == 4401
