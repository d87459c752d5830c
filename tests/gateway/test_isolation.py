"""Two tenants: nothing of one is reachable, or even noticeable, from the other."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import openai
import pytest
import requests

from tenants.audit import system
from tenants.keys import create_key, revoke_key
from tenants.models import Tenant
from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import Behaviour
from tests.gateway.live import wait_for

MESSAGES = [{"role": "user", "content": "Hi"}]


def refusal(customer: Customer, model: str) -> dict[str, object]:
    with pytest.raises(openai.NotFoundError) as caught:
        customer.client().chat.completions.create(
            model=model,
            messages=MESSAGES,  # type: ignore[arg-type]
        )
    body = caught.value.body
    assert isinstance(body, dict)
    return {**body, "message": str(body["message"]).replace(model, "…")}


@pytest.mark.case("C84")
def test_a_foreign_adapter_is_as_absent(stack: Stack, acme: Customer, globex: Customer) -> None:
    digest = stack.activate(acme, "secret-bot", 2)
    # Hot on every replica, and just used by its owner.
    acme.client().chat.completions.create(model="secret-bot", messages=MESSAGES)  # type: ignore[arg-type]
    absent = refusal(globex, "no-such-bot")
    for name in ("secret-bot", "secret-bot@2", digest, digest.upper(), f"{acme.tenant.slug}/x"):
        assert refusal(globex, name) == absent
    with pytest.raises(openai.NotFoundError):
        globex.client().models.retrieve("secret-bot")
    assert "secret-bot" not in [one.id for one in globex.client().models.list()]


@pytest.mark.case("C84")
def test_a_digest_is_no_name_for_its_owner_either(stack: Stack, acme: Customer) -> None:
    digest = stack.activate(acme, "own-bot")
    assert refusal(acme, digest)["code"] == "model_not_found"


def test_the_same_name_twice(stack: Stack, acme: Customer, globex: Customer) -> None:
    digests = [stack.activate(one, "shared-name") for one in (acme, globex)]
    for customer, digest in zip((acme, globex), digests, strict=True):
        answer = customer.client().chat.completions.create(
            model="shared-name",
            messages=MESSAGES,  # type: ignore[arg-type]
        )
        assert answer.system_fingerprint == digest
    salts = {body["cache_salt"] for replica in stack.replicas for body in replica.bodies}
    assert salts == {acme.tenant.cache_salt, globex.tenant.cache_salt}


def told(customer: Customer, **more: Any) -> openai.Stream[Any]:
    """A stream whose request carries the same id as all others."""
    stream: openai.Stream[Any] = customer.client().chat.completions.create(
        model="tiny-base",
        messages=MESSAGES,  # type: ignore[arg-type]
        stream=True,
        extra_headers={"X-Request-Id": "same"},
        **more,
    )
    return stream


def text_of(stream: openai.Stream[Any]) -> str:
    return "".join(one.choices[0].delta.content or "" for one in stream)


@pytest.mark.case("C79")
def test_the_same_request_id_from_two_tenants_at_once(
    stack: Stack, acme: Customer, globex: Customer
) -> None:
    """At peers a client's id was the key of its request: two with one id crashed, hung or mixed."""
    for replica in stack.replicas:
        replica.behaviour = Behaviour(token_interval_s=0.1)
    streams = [told(one) for one in (acme, globex) * 5]
    with ThreadPoolExecutor(len(streams)) as pool:
        assert set(pool.map(text_of, streams)) == {"Hello world! ✓"}
    rows = [row for one in (acme, globex) for row in one.usage(5)]
    assert {(row.status, row.completion_tokens) for row in rows} == {("finished", 5)}
    assert len({row.request_id for row in rows}) == 10


@pytest.mark.case("C79")
def test_the_same_request_id_again_right_after_an_abort(stack: Stack, acme: Customer) -> None:
    for replica in stack.replicas:
        replica.behaviour = Behaviour(hold_after=2)
    stream = told(acme)
    next(iter(stream))
    for replica in stack.replicas:
        replica.behaviour = Behaviour()
    stream.close()
    assert text_of(told(acme)) == "Hello world! ✓"
    assert {row.status for row in acme.usage(2)} == {"cancelled", "finished"}


@pytest.mark.case("C81")
def test_every_name_that_is_printed_is_found(stack: Stack, acme: Customer) -> None:
    """Listed or named in an answer, as it is and percent-encoded."""
    stack.activate(acme, "dotted.name-1_x", 3)
    client = acme.client()
    answer = client.chat.completions.create(model="dotted.name-1_x", messages=MESSAGES)  # type: ignore[arg-type]
    names = [one.id for one in client.models.list()] + [answer.model]
    assert answer.model == "dotted.name-1_x@3" and len(names) == 4
    for name in names:
        assert client.models.retrieve(name).id == name
        url = f"{stack.web.url}/v1/models/{quote(name, safe='').replace('-', '%2D')}"
        headers = {"authorization": f"Bearer {acme.api_key}"}
        assert requests.get(url, headers=headers, timeout=30).json()["id"] == name


@pytest.mark.case("C117")
def test_a_revoked_key_is_refused_within_a_second(acme: Customer) -> None:
    client = acme.client()
    client.models.list()
    revoke_key(system(acme.tenant.id), acme.api_key.split("-")[1])

    def is_refused() -> bool:
        try:
            client.models.list()
        except openai.AuthenticationError:
            return True
        return False

    wait_for("the refusal", is_refused, timeout_s=1.0)


@pytest.mark.case("C117")
def test_without_the_push_the_lifetime_of_the_cache_is_the_bound(acme: Customer) -> None:
    client = acme.client()
    client.models.list()
    # Past every hook, as a lost message would be.
    Tenant.objects.filter(id=acme.tenant.id).update(is_active=False)

    def is_refused() -> bool:
        try:
            client.models.list()
        except openai.AuthenticationError:
            return True
        return False

    wait_for("the refusal", is_refused, timeout_s=2.0)


@pytest.mark.case("C117")
def test_a_new_key_works_at_once(acme: Customer) -> None:
    key = create_key(system(acme.tenant.id), "another", ["inference"])
    assert list(acme.web.client(key.raw).models.list())
