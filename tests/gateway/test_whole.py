"""One JSON answer, of replicas that do not end it: its client has seen nothing before it."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import openai
import pytest

from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import PROMPT_TOKENS, Behaviour
from tests.gateway.live import start_web, wait_for
from tests.gateway.test_failures import BODY, behave, other_and_first


@pytest.mark.case("C123")
@pytest.mark.case("C132")
def test_a_replica_that_dies_before_a_json_answer_is_replaced_unseen(
    stack: Stack, acme: Customer
) -> None:
    """Its client has seen nothing, and pays for the answer that it got alone."""
    _, first = other_and_first(stack, acme)
    first.behaviour = Behaviour(die_after=3, token_interval_s=0.05)
    answer = acme.client().chat.completions.create(**BODY)  # type: ignore[call-overload]
    assert answer.choices[0].message.content == "Hello world! ✓"
    assert answer.usage.completion_tokens == 5
    row = acme.usage(2)[-1]
    assert (row.status, row.prompt_tokens, row.completion_tokens) == ("finished", PROMPT_TOKENS, 5)
    assert row.replica not in ("", first.url)


@pytest.mark.case("C132")
def test_a_json_answer_that_no_replica_ends_costs_nothing(stack: Stack, acme: Customer) -> None:
    behave(stack, die_after=3, token_interval_s=0.05)
    with pytest.raises(openai.InternalServerError) as caught:
        acme.client().chat.completions.create(**BODY)  # type: ignore[call-overload]
    assert (caught.value.status_code, caught.value.code) == (503, "no_replica")
    assert "Nothing is billed" in caught.value.message
    assert caught.value.response.headers["retry-after"] == "2"
    [row] = acme.usage(1)
    assert (row.status, row.completion_tokens, row.cost) == ("failed", None, 0)


def test_a_replica_that_stops_in_the_middle_of_a_json_answer(stack: Stack, acme: Customer) -> None:
    """A replica that drains says so inside its streams: a plain answer moves on."""
    _, first = other_and_first(stack, acme)
    first.behaviour = Behaviour(error_after=3, error_code="overloaded")
    answer = acme.client().chat.completions.create(**BODY)  # type: ignore[call-overload]
    assert answer.choices[0].message.content == "Hello world! ✓"
    assert [row.completion_tokens for row in acme.usage(2)] == [5, 5]


@pytest.mark.case("C132")
def test_a_server_that_stops_charges_nobody_for_what_it_cuts(
    stack: Stack, acme: Customer, tmp_path: Path
) -> None:
    """Who waits for a plain answer longer than a server's last seconds; a client that has left is
    another matter.
    """
    web = start_web(tmp_path, stack.database_url, [one.url for one in stack.replicas])
    behave(stack, hold_after=3)
    client = replace(acme, web=web).client()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: client.chat.completions.create(**BODY))  # type: ignore[call-overload]
        wait_for("the request", lambda: any(one.num_running for one in stack.replicas))
        web.stop()
        with pytest.raises(openai.InternalServerError) as caught:
            asked.result(30)
    assert (caught.value.status_code, caught.value.code) == (503, "server_stopping")
    [row] = acme.usage(1)
    assert (row.status, row.error_code) == ("failed", "server_stopping")
    assert (row.completion_tokens, row.cost) == (None, 0)
    web.close_clients()


def test_a_server_that_stops_ends_a_stream_by_an_error(
    stack: Stack, acme: Customer, tmp_path: Path
) -> None:
    """Not by silence: a connection that is closed in the middle looks like a fault of the network.
    What the client has got is billed.
    """
    web = start_web(tmp_path, stack.database_url, [one.url for one in stack.replicas])
    behave(stack, hold_after=3)
    client = replace(acme, web=web).client()
    chunks = client.chat.completions.create(**BODY, stream=True)  # type: ignore[call-overload]
    next(chunks)
    web.stop()
    with pytest.raises(openai.APIError) as caught:
        list(chunks)
    assert caught.value.code == "server_stopping"
    [row] = acme.usage(1)
    assert (row.status, row.error_code, row.completion_tokens) == ("failed", "server_stopping", 3)
    assert row.cost > 0
    web.close_clients()
