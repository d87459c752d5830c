"""Replicas that answer with another version, or the base, in the place of what was asked for."""

from decimal import Decimal

import pytest
import requests

from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import Behaviour
from tests.gateway.live import BASE_MODEL, metric, wait_for
from tests.gateway.test_failures import BODY, MESSAGES, behave, other_and_first, stream


def test_another_version_is_never_relayed(stack: Stack, acme: Customer) -> None:
    mismatches = metric(stack.web, "grafthouse_digest_mismatches_total")
    names = [f"bot-{number}" for number in range(4)]
    for name in names:
        stack.activate(acme, name)
    for number, name in enumerate(names):
        behave(stack, fingerprint=("e" * 64, "base")[number % 2])
        answer = requests.post(
            f"{stack.web.url}/v1/chat/completions",
            json=BODY | {"model": name, "stream": number > 1},
            headers={"authorization": f"Bearer {acme.api_key}"},
            timeout=30,
        )
        check_mismatch(answer, name)
    # Both replicas were asked each time.
    assert metric(stack.web, "grafthouse_digest_mismatches_total") == mismatches + 8
    assert {(row.status, row.cost) for row in acme.usage(4)} == {("failed", Decimal(0))}


def check_mismatch(answer: requests.Response, name: str) -> None:
    """What a client can do is to come again: nothing was wrong with its request."""
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (
        503,
        "version_mismatch",
        "server_error",
    )
    assert name in error["message"] and "Hello" not in answer.text
    assert answer.headers["retry-after"] == "2"


@pytest.mark.parametrize("model", ["alone-bot", BASE_MODEL])
def test_the_only_holder_uses_another_version(stack: Stack, acme: Customer, model: str) -> None:
    """Also while it is not asked any more, it is not said to be busy, nor the adapter to load; and
    once it is right again, who waited as told gets an answer.
    """
    if model != BASE_MODEL:
        digest = stack.activate(acme, model)
        stack.replicas[0].digests.discard(digest)
    behave(stack, fingerprint="e" * 64)
    headers = {"authorization": f"Bearer {acme.api_key}"}
    url = f"{stack.web.url}/v1/chat/completions"
    for _ in range(4):
        answer = requests.post(url, json=BODY | {"model": model}, headers=headers, timeout=30)
        check_mismatch(answer, model)
    behave(stack)
    client = acme.client(max_retries=2)
    answered = client.chat.completions.create(model=model, messages=MESSAGES)  # type: ignore[arg-type]
    assert answered.choices[0].message.content == "Hello world! ✓"


def test_who_used_another_version_is_replaced_unseen_and_not_trusted(
    stack: Stack, acme: Customer
) -> None:
    """For that version, for a while: what else it holds it serves."""
    _, first = other_and_first(stack, acme)
    for number in range(8):
        stack.activate(acme, f"other-{number}")
    first.behaviour = Behaviour(fingerprint="e" * 64)
    assert "".join(stream(acme)) == "Hello world! ✓"
    num_asked = len(first.bodies)
    assert num_asked == 2
    first.behaviour = Behaviour()
    assert "".join(stream(acme)) == "Hello world! ✓"
    assert len(first.bodies) == num_asked
    for number in range(8):
        acme.client().chat.completions.create(model=f"other-{number}", messages=MESSAGES)  # type: ignore[arg-type]
    assert len(first.bodies) > num_asked
    num_asked = len(first.bodies)

    def is_trusted_again() -> bool:
        list(stream(acme))
        return len(first.bodies) > num_asked

    wait_for("the end of the doubt", is_trusted_again, timeout_s=5)
