"""A replica that answers its polls and fails its requests: open, half-open, closed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.breaker import (
    MAX_OPEN_S,
    MIN_OPEN_S,
    NUM_FAILURES,
    Breaker,
    State,
    answered,
    failed,
    left,
    sent,
    state,
    takes_work,
)
from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import Behaviour
from tests.gateway.live import metric, wait_for


def opened(now_s: float = 0.0, jitter: float = 1.0) -> Breaker:
    found = Breaker()
    for _ in range(NUM_FAILURES):
        assert takes_work(found, now_s)
        found = failed(found, now_s, jitter)
    return found


def test_it_works() -> None:
    breaker = opened()
    assert state(breaker, 0.0) is State.OPEN and not takes_work(breaker, 0.0)
    assert state(breaker, MIN_OPEN_S) is State.HALF_OPEN
    trial = sent(breaker)
    # One request at a time.
    assert not takes_work(trial, MIN_OPEN_S)
    closed = answered(trial)
    assert state(closed, MIN_OPEN_S) is State.CLOSED and takes_work(closed, MIN_OPEN_S)
    # It is on probation until an answer was whole.
    assert state(failed(closed, MIN_OPEN_S, 1.0), MIN_OPEN_S) is State.OPEN


def test_a_failed_trial_opens_it_for_twice_as_long_up_to_a_bound() -> None:
    breaker, now_s, pauses = opened(), 0.0, []
    for _ in range(8):
        pauses.append(breaker.retry_at_s - now_s)
        now_s = breaker.retry_at_s
        breaker = failed(sent(breaker), now_s, 1.0)
    assert pauses == [1, 2, 4, 8, 16, MAX_OPEN_S, MAX_OPEN_S, MAX_OPEN_S]


def test_what_was_under_way_when_it_opened_is_no_news() -> None:
    breaker = opened()
    for _ in range(30):
        breaker = failed(breaker, 0.5, 1.0)
    assert breaker == opened()


def test_a_trial_whose_client_left_tells_nothing() -> None:
    trial = left(sent(opened()))
    assert state(trial, MIN_OPEN_S) is State.HALF_OPEN and takes_work(trial, MIN_OPEN_S)


def test_a_first_token_under_way_closes_nothing() -> None:
    assert answered(opened()) == opened()


@given(st.floats(0, 1))
def test_jitter_is_half_of_the_pause(jitter: float) -> None:
    assert MIN_OPEN_S / 2 <= opened(jitter=jitter).retry_at_s <= MIN_OPEN_S


@pytest.mark.case("C123")
def test_a_replica_that_only_answers_polls_is_left_alone(stack: Stack, acme: Customer) -> None:
    client, num_asked = acme.client(), 0

    def ask() -> None:
        nonlocal num_asked
        answer = client.chat.completions.create(
            model="support-bot", messages=[{"role": "user", "content": "Hi"}]
        )
        assert answer.choices[0].message.content == "Hello world! ✓"
        num_asked += 1

    def breaker() -> float:
        return metric(stack.web, f'grafthouse_replica_breaker{{replica="{sick.url}"}}')

    ask()
    sick = max(stack.replicas, key=lambda replica: len(replica.bodies))
    sick.behaviour = Behaviour(is_malformed=True)
    for _ in range(NUM_FAILURES + 5):
        # Each is answered, by the other replica.
        ask()
    assert len(sick.bodies) <= 1 + NUM_FAILURES
    assert breaker() == State.OPEN
    sick.behaviour = Behaviour()

    def is_closed() -> bool:
        ask()
        return breaker() == State.CLOSED

    wait_for("the trial", is_closed)
    num_bodies = len(sick.bodies)
    ask()
    assert len(sick.bodies) == num_bodies + 1
    # One row for each request, however many replicas it took.
    assert {row.status for row in acme.usage(num_asked)} == {"finished"}
