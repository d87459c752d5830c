"""A key that may ask for some models only: all others are to it as if there were none."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openai
import pytest
from websockets.sync.client import connect

from adapters.models import Adapter
from tenants.audit import system
from tenants.keys import create_key
from tenants.scope import tenant_scope
from tests.gateway.conftest import Customer, Stack
from tests.gateway.live import BASE_MODEL

MESSAGES = [{"role": "user", "content": "Hi"}]
ABSENT = "no-such-bot"


def narrowed(customer: Customer, *names: str) -> Customer:
    made = create_key(system(customer.tenant.id), "few", ["inference"], allowed_models=names)
    return replace(customer, api_key=made.raw)


def chat(customer: Customer, model: str, **fields: Any) -> Any:
    return customer.client().chat.completions.create(
        model=model,
        messages=MESSAGES,  # type: ignore[arg-type]
        extra_body=fields,
    )


def complete(customer: Customer, model: str) -> Any:
    return customer.client().completions.create(model=model, prompt="Hi")


def stream(customer: Customer, model: str) -> Any:
    client = customer.client()
    return client.chat.completions.create(model=model, messages=MESSAGES, stream=True)  # type: ignore[call-overload]


def retrieve(customer: Customer, model: str) -> Any:
    return customer.client().models.retrieve(model)


def by_lora_path(customer: Customer, model: str) -> Any:
    return chat(customer, BASE_MODEL, lora_path=model)


WAYS: list[Callable[[Customer, str], Any]] = [chat, complete, stream, retrieve, by_lora_path]


def refusal(ask: Callable[[Customer, str], Any], customer: Customer, model: str) -> dict[str, Any]:
    with pytest.raises(openai.NotFoundError) as caught:
        ask(customer, model)
    body = caught.value.body
    assert isinstance(body, dict)
    return {**body, "message": str(body["message"]).replace(model, "…")}


@pytest.mark.parametrize("ask", WAYS)
def test_it_works(stack: Stack, acme: Customer, ask: Callable[[Customer, str], Any]) -> None:
    """A foreign name, the base's, a pinned one and a version that is not served: one answer."""
    stack.activate(acme, "other-bot", 1)
    stack.activate(acme, "other-bot", 2)
    few = narrowed(acme, "support-bot")
    for model in ("support-bot", "support-bot@1"):
        assert ask(few, model)
    absent = refusal(ask, few, ABSENT)
    assert absent["code"] == "model_not_found"
    for model in ("other-bot", "other-bot@1", "other-bot@2", "other-bot@9", BASE_MODEL):
        assert refusal(ask, few, model) == absent
    # The tenant's other key sees them all, also when this one has just asked.
    for model in ("other-bot", BASE_MODEL):
        assert ask(acme, model)
        assert refusal(ask, few, model) == absent


def test_the_list(stack: Stack, acme: Customer, settings: Any) -> None:
    settings.BASE_MODEL_NAME = BASE_MODEL
    stack.activate(acme, "other-bot")
    with tenant_scope(acme.tenant.id):
        Adapter.objects.create(tenant=acme.tenant, name="nothing-yet")
    for names, listed in (
        (("support-bot",), ["support-bot"]),
        ((BASE_MODEL, "other-bot"), [BASE_MODEL, "other-bot"]),
        (("nothing-yet",), []),
        ((), [BASE_MODEL, "other-bot", "support-bot"]),
    ):
        client = narrowed(acme, *names).client()
        assert [one.id for one in client.models.list()] == listed


def test_a_socket(stack: Stack, acme: Customer) -> None:
    stack.activate(acme, "other-bot")
    few = narrowed(acme, "support-bot")
    headers = {"authorization": f"Bearer {few.api_key}"}
    url = stack.web.url.replace("http", "ws") + "/ws/v1/chat"
    errors = []
    with connect(url, additional_headers=headers) as link:
        assert json.loads(link.recv(timeout=10))["type"] == "ready"
        for model in (ABSENT, "other-bot", "support-bot"):
            body = {"model": model, "messages": MESSAGES}
            link.send(json.dumps({"type": "chat", "id": model, "body": body}))
            while (frame := json.loads(link.recv(timeout=10)))["type"] == "chunk":
                pass
            if frame["type"] == "error":
                errors.append({**frame["error"], "message": frame["error"]["message"][-40:]})
    assert frame["type"] == "done"
    assert len(errors) == 2 and errors[0] == errors[1]
