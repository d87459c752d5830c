"""Aliases through the official client: found, listed, followed, and named for what served."""

import time

import openai
import pytest

from adapters.aliases import access_alias, create_alias, delete_alias, point_alias
from adapters.models import Adapter
from tenants.audit import system
from tenants.scope import tenant_scope
from tests.gateway.conftest import Customer, Stack
from tests.gateway.live import BASE_MODEL

MESSAGES = [{"role": "user", "content": "Hi"}]


def served(customer: Customer, model: str) -> str:
    answer = customer.client().chat.completions.create(model=model, messages=MESSAGES)
    return answer.model


def test_it_works(stack: Stack, acme: Customer) -> None:
    actor = system(acme.tenant.id)
    digest = stack.activate(acme, "support-bot", 2)
    with tenant_scope(acme.tenant.id):
        bot = Adapter.objects.get()
        create_alias(actor, "prod", bot, None)
        create_alias(actor, "old", bot, 1)
    client = acme.client()
    names = [one.id for one in client.models.list()]
    assert names == [BASE_MODEL, "old", "prod", "support-bot"]
    assert [client.models.retrieve(name).id for name in names] == names
    answer = client.chat.completions.create(model="prod", messages=MESSAGES)
    assert (answer.model, answer.system_fingerprint) == ("support-bot@2", digest)
    assert served(acme, "old") == "support-bot@1"
    rows = acme.usage(2)
    assert [(row.adapter, row.version) for row in rows] == [("support-bot", 2), ("support-bot", 1)]


def test_a_change_holds_within_a_second(stack: Stack, acme: Customer) -> None:
    actor = system(acme.tenant.id)
    stack.activate(acme, "support-bot", 2)
    with tenant_scope(acme.tenant.id):
        bot = Adapter.objects.get()
        alias = create_alias(actor, "prod", bot, None)
    assert served(acme, "prod") == "support-bot@2"
    with tenant_scope(acme.tenant.id):
        point_alias(actor, alias, bot, 1)
    deadline = time.monotonic() + 1.0
    while served(acme, "prod") != "support-bot@1":
        assert time.monotonic() < deadline
    with tenant_scope(acme.tenant.id):
        delete_alias(actor, access_alias("prod"))
    with pytest.raises(openai.NotFoundError) as caught:
        while time.monotonic() < deadline + 1.0:
            served(acme, "prod")
    assert caught.value.code == "model_not_found"
