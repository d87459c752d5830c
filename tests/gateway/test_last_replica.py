"""A house of one replica: what it lost is no reason to be told that there is none."""

from collections.abc import Iterator
from dataclasses import replace

import openai
import pytest
from pytest_django import DjangoDbBlocker

from gateway.breaker import NUM_FAILURES, State
from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import Behaviour, FakeReplica
from tests.gateway.live import default_database, default_store, metric, start_web

BODY = {"model": "support-bot", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="module")
def small_stack(running_stack: Stack) -> Iterator[Stack]:
    replica = FakeReplica()
    web = start_web(running_stack.folder, running_stack.database_url, [replica.url])
    yield replace(running_stack, web=web, replicas=[replica])
    web.close_clients()
    web.stop()
    replica.close()


@pytest.fixture
def house(
    small_stack: Stack, django_db_blocker: DjangoDbBlocker
) -> Iterator[tuple[Customer, FakeReplica]]:
    [replica] = small_stack.replicas
    replica.behaviour = Behaviour()
    with django_db_blocker.unblock(), default_database(small_stack.database_url), default_store():
        customer = small_stack.make_customer()
        small_stack.activate(customer, "support-bot")
        yield customer, replica


def ask(customer: Customer) -> str:
    """The answer, or the error's code."""
    try:
        answer = customer.client().chat.completions.create(**BODY)  # type: ignore[call-overload]
    except openai.APIStatusError as error:
        return str(error.code)
    return str(answer.choices[0].message.content)


LOSSES = {
    "cut": Behaviour(die_after=3, token_interval_s=0.05),
    "cut before its first token": Behaviour(die_after=0),
    "malformed": Behaviour(is_malformed=True),
}


@pytest.mark.parametrize("num_losses", [1, NUM_FAILURES + 1])
@pytest.mark.parametrize("kind", LOSSES)
def test_the_next_request_is_answered(
    house: tuple[Customer, FakeReplica], kind: str, num_losses: int
) -> None:
    """At once, also where its breaker is open: it would spare nobody anything."""
    customer, replica = house
    replica.behaviour = LOSSES[kind]
    for _ in range(num_losses):
        assert ask(customer) != "Hello world! ✓"
    breaker = f'grafthouse_replica_breaker{{replica="{replica.url}"}}'
    if num_losses >= NUM_FAILURES:
        assert metric(customer.web, breaker) != State.CLOSED
    replica.behaviour = Behaviour()
    assert ask(customer) == "Hello world! ✓"
    assert metric(customer.web, breaker) == State.CLOSED


def test_one_that_is_gone_is_gone(house: tuple[Customer, FakeReplica]) -> None:
    customer, replica = house
    replica.stop()
    try:
        assert ask(customer) == "no_replica"
        assert ask(customer) == "no_replica"
    finally:
        replica.start()
    # It is asked again before the next poll would be.
    assert ask(customer) == "Hello world! ✓"
