"""Two tenants: nothing of one is reachable, or even noticeable, from the other."""

import threading

import openai
import pytest

from tenants.audit import system
from tenants.keys import create_key, revoke_key
from tenants.models import Tenant
from tests.gateway.conftest import Customer, Stack
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


@pytest.mark.case("C79")
def test_the_same_request_id_from_two_tenants_at_once(
    stack: Stack, acme: Customer, globex: Customer
) -> None:
    def talk(customer: Customer) -> None:
        for _ in range(5):
            customer.client().chat.completions.create(
                model="tiny-base",
                messages=MESSAGES,  # type: ignore[arg-type]
                extra_headers={"X-Request-Id": "same"},
            )

    threads = [threading.Thread(target=talk, args=(one,)) for one in (acme, globex)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [len(one.usage(5)) for one in (acme, globex)] == [5, 5]


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
