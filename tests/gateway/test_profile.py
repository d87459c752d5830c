"""A version's serving profile in its requests: what the replica is asked, what the client sees."""

import time
from typing import Any

import openai
import pytest
from websockets.sync.client import connect

from adapters.models import AdapterVersion
from adapters.profile import ServingProfile, set_profile
from gateway.admission import bounds
from gateway.openai.profile import as_sent, fill_in
from gateway.openai.schema import parse_ask
from tenants.audit import system
from tenants.errors import ApiError
from tenants.scope import tenant_scope
from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import Behaviour
from tests.gateway.live import BASE_MODEL
from tests.gateway.test_websocket import say

MESSAGES = [{"role": "user", "content": "Hi"}]
VALUES: dict[str, Any] = {
    "system_prompt": "Answer as a clerk.",
    "stop": ["\n\n", "User:"],
    "max_tokens": 64,
    "temperature": 0.2,
    "top_k": 40,
}
SYSTEM = {"role": "system", "content": "Answer as a clerk."}
PROFILE = ServingProfile(
    system_prompt="Answer as a clerk.",
    stop=("\n\n", "User:"),
    max_tokens=64,
    sampling={"temperature": 0.2, "top_k": 40},
)


def filled(**fields: Any) -> dict[str, Any]:
    ask = parse_ask("chat.completions", {"model": "bot", "messages": MESSAGES, **fields})
    return fill_in(ask, PROFILE).body


def give(customer: Customer, values: dict[str, Any], number: int = 1) -> None:
    """In the database, and told to the web process."""
    with tenant_scope(customer.tenant.id):
        rows = AdapterVersion.objects.select_related("adapter")
        version = rows.get(adapter__name="support-bot", number=number)
        set_profile(system(customer.tenant.id), version, values)


def last_sent(stack: Stack) -> dict[str, Any]:
    (body,) = [body for replica in stack.replicas for body in replica.bodies]
    for replica in stack.replicas:
        replica.bodies.clear()
    return body


def ask(customer: Customer, model: str = "support-bot", **fields: Any) -> Any:
    fields = {"messages": MESSAGES} | fields
    return customer.client().chat.completions.create(model=model, **fields)


def test_it_works(stack: Stack, acme: Customer) -> None:
    give(acme, VALUES)
    answer = ask(acme)
    assert answer.choices[0].message.content == "Hello world! ✓"
    sent = last_sent(stack)
    assert sent["messages"] == [SYSTEM, *MESSAGES]
    assert (sent["stop"], sent["max_tokens"]) == (["\n\n", "User:"], 64)
    assert (sent["temperature"], sent["top_k"]) == (0.2, 40)
    ask(acme, "support-bot@1", stream=False, temperature=1.5, max_tokens=2)
    sent = last_sent(stack)
    assert (sent["temperature"], sent["max_tokens"], sent["top_k"]) == (1.5, 2, 40)


def test_the_request_wins() -> None:
    assert filled(temperature=0, top_k=None) == filled(temperature=0) != filled()
    assert filled(temperature=0)["temperature"] == 0
    for role in ("system", "developer"):
        messages = [*MESSAGES, {"role": role, "content": "Rhyme."}]
        assert filled(messages=messages)["messages"] == messages


def test_stop_words_are_added() -> None:
    assert filled(stop="User:")["stop"] == ["User:", "\n\n"]
    assert filled(stop=["a", "b", "c", "d"])["stop"] == ["a", "b", "c", "d", "\n\n", "User:"]
    assert filled(stop=[])["stop"] == filled(stop=None)["stop"] == ["\n\n", "User:"]
    # The engine says what is wrong with it.
    assert filled(stop=5)["stop"] == 5 and filled(stop=["a", 5])["stop"] == ["a", 5]


@pytest.mark.parametrize("endpoint", ["chat.completions", "completions"])
def test_five_stop_words_of_a_request_are_refused(endpoint: Any) -> None:
    body = {"model": "bot", "messages": MESSAGES, "prompt": "a", "stop": ["a"] * 17}
    with pytest.raises(ApiError, match="at most 16, got 17") as caught:
        parse_ask(endpoint, body)
    assert (caught.value.status, caught.value.param) == (400, "stop")


def test_what_it_adds_is_reserved() -> None:
    body = {"model": "bot", "messages": MESSAGES}
    plain = parse_ask("chat.completions", body)
    whole = parse_ask("chat.completions", body | {"messages": [SYSTEM, *MESSAGES]})
    got = fill_in(plain, PROFILE)
    assert bounds(got, 1, None)[0] == bounds(whole, 1, None)[0] > bounds(plain, 1, None)[0]
    assert fill_in(plain, None) is plain


def test_messages_are_counted_as_the_client_sent_them() -> None:
    body = {"model": "bot", "messages": MESSAGES}
    plain = parse_ask("chat.completions", body)
    error = ApiError("invalid_request", 400, "Bad 'messages[2].role'.", param="messages[2].role")
    seen = as_sent(error, fill_in(plain, PROFILE))
    assert (seen.message, seen.param) == ("Bad 'messages[1].role'.", "messages[1].role")
    assert as_sent(error, plain) is error


def test_a_chat_template_goes_along_with_what_was_reserved(stack: Stack, acme: Customer) -> None:
    give(acme, {"chat_template": "{{ messages[0].content }} ✓"})
    ask(acme)
    sent = last_sent(stack)
    plain = parse_ask("chat.completions", {"model": "bot", "messages": MESSAGES})
    assert sent["chat_template"] == "{{ messages[0].content }} ✓"
    num_bytes = len("{{ messages[0].content }} ✓".encode())
    assert sent["max_prompt_tokens"] == plain.num_prompt_tokens_bound + num_bytes
    acme.client().completions.create(model="support-bot", prompt="Once")
    assert "chat_template" not in last_sent(stack)


def test_a_request_brings_no_chat_template(acme: Customer) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(acme, extra_body={"chat_template": "{{ 1 }}"})
    assert caught.value.param == "chat_template" and "serving profile" in caught.value.message
    ask(acme, extra_body={"chat_template": None, "max_prompt_tokens": 1})


def test_a_refusal_names_the_clients_message(stack: Stack, acme: Customer) -> None:
    give(acme, VALUES)
    refusal = {"message": "Invalid 'messages[1].content'.", "param": "messages[1].content"}
    for replica in stack.replicas:
        replica.behaviour = Behaviour(status=400, error=refusal)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(acme)
    assert caught.value.param == "messages[0].content"
    assert "'messages[0].content'" in caught.value.message


def test_its_limit_is_a_default(stack: Stack, acme: Customer) -> None:
    """A prompt that fits the context but not beside it is answered all the same."""
    give(acme, {"max_tokens": 2000})
    error = {"message": "too long", "code": "context_length_exceeded"}
    for replica in stack.replicas:
        replica.behaviour = Behaviour(status=400, error=error, refuses_limits=True)
    assert ask(acme).choices[0].message.content == "Hello world! ✓"


def test_completions_have_no_messages(stack: Stack, acme: Customer) -> None:
    give(acme, VALUES)
    acme.client().completions.create(model="support-bot", prompt="Once")
    sent = last_sent(stack)
    assert sent["prompt"] == "Once" and "messages" not in sent
    assert (sent["stop"], sent["max_tokens"], sent["top_k"]) == (["\n\n", "User:"], 64, 40)


def test_the_socket_fills_in_too(stack: Stack, acme: Customer) -> None:
    give(acme, VALUES)
    with connect(stack.web.url.replace("http", "ws") + "/ws/v1/chat") as link:
        say(link, type="auth", api_key=acme.api_key)
        say(link, type="chat", id="a", body={"model": "support-bot", "messages": MESSAGES})
        while '"done"' not in str(link.recv(10)):
            pass
    sent = last_sent(stack)
    assert sent["messages"] == [SYSTEM, *MESSAGES] and sent["temperature"] == 0.2


def test_a_change_holds_within_a_second(stack: Stack, acme: Customer) -> None:
    """Each version has its own, and the base none."""
    give(acme, VALUES)
    ask(acme)
    assert last_sent(stack)["temperature"] == 0.2
    give(acme, {"temperature": 0.9})
    deadline = time.monotonic() + 1.0
    while ask(acme) and last_sent(stack)["temperature"] != 0.9:
        assert time.monotonic() < deadline
    stack.activate(acme, "support-bot", 2)
    give(acme, {"temperature": 0.4}, number=2)
    for model, temperature in (("support-bot", 0.4), ("support-bot@1", 0.9), (BASE_MODEL, None)):
        ask(acme, model)
        assert last_sent(stack).get("temperature") == temperature, model
