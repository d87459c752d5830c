"""How a stream ends that does not end well, as the SDK shows it: errors, closes, timeouts."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import PROMPT_TOKENS, Behaviour
from tests.gateway.live import BASE_MODEL, wait_for

MESSAGES: list[Any] = [{"role": "user", "content": "Hi"}]
CHAT: dict[str, Any] = {"model": BASE_MODEL, "messages": MESSAGES, "max_tokens": 400}
LONG: dict[str, Any] = {"tokens": ["x"] * 400, "token_interval_s": 0.02}
MAX_ABORT_S = 1.0


def behave(stack: Stack, **fields: Any) -> None:
    for replica in stack.replicas:
        replica.behaviour = Behaviour(**fields)


def num_running(stack: Stack) -> int:
    return sum(one.num_running for one in stack.replicas)


def wait_for_abort(stack: Stack, within_s: float = MAX_ABORT_S) -> None:
    left_at = time.monotonic()
    wait_for("the abort", lambda: not num_running(stack))
    assert time.monotonic() - left_at < within_s


def chat_texts(client: openai.OpenAI) -> Iterator[str]:
    for chunk in client.chat.completions.create(**CHAT, stream=True):
        yield chunk.choices[0].delta.content or ""


def completion_texts(client: openai.OpenAI) -> Iterator[str]:
    for chunk in client.completions.create(model=BASE_MODEL, prompt="Hi", stream=True):
        yield chunk.choices[0].text


def helper_texts(client: openai.OpenAI) -> Iterator[str]:
    with client.chat.completions.stream(**CHAT) as stream:
        for event in stream:
            if event.type == "content.delta":
                yield event.delta


@pytest.mark.parametrize("texts", [chat_texts, completion_texts, helper_texts])
@pytest.mark.parametrize(
    ("behaviour", "code"),
    [({"die_after": 3}, "replica_failed"), ({"error_after": 3}, "non_finite_logits")],
)
def test_an_error_inside_the_stream(
    stack: Stack,
    acme: Customer,
    texts: Callable[[openai.OpenAI], Iterator[str]],
    behaviour: dict[str, Any],
    code: str,
) -> None:
    """What came before it is delivered; the client that raised is as good as new."""
    behave(stack, token_interval_s=0.05, **behaviour)
    client, seen = acme.client(), []
    with pytest.raises(openai.APIError) as caught:
        for text in texts(client):
            seen.append(text)
    assert "".join(seen) == "Hello world"
    error = caught.value
    assert not isinstance(error, openai.APIStatusError | openai.APIConnectionError)
    assert (error.code, error.type, error.param) == (code, "server_error", None)
    assert isinstance(error.body, dict) and list(error.body) == ["message", "type", "param", "code"]
    assert error.message == error.body["message"]
    behave(stack)
    assert "".join(texts(client)) == "Hello world! ✓"
    counts = [(row.status, row.completion_tokens) for row in acme.usage(2)]
    assert counts == [("failed", 3), ("finished", 5)]


@pytest.mark.case("C104")
def test_a_closed_stream_is_cancelled(stack: Stack, acme: Customer) -> None:
    behave(stack, **LONG)
    stream = acme.client().chat.completions.create(**CHAT, stream=True)
    for number, _ in enumerate(stream):
        if number == 10:
            break
    stream.close()
    wait_for_abort(stack)
    [row] = acme.usage(1)
    assert (row.status, row.prompt_tokens, row.error_code) == ("cancelled", PROMPT_TOKENS, "")
    assert row.completion_tokens and 10 <= row.completion_tokens < 100 and row.cost > 0


@pytest.mark.case("C104")
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_clients_timeout_cancels(stack: Stack, acme: Customer, is_stream: bool) -> None:
    behave(stack, silent_s=30.0)
    client = acme.client(timeout=1.0)
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(**CHAT, stream=is_stream)
    wait_for_abort(stack)
    [row] = acme.usage(1)
    assert (row.status, row.cost, row.completion_tokens) == ("cancelled", 0, None)


def test_a_timeout_between_tokens(stack: Stack, acme: Customer) -> None:
    behave(stack, token_interval_s=5.0)
    with pytest.raises(openai.APITimeoutError):
        for _ in acme.client(timeout=1.0).chat.completions.create(**CHAT, stream=True):
            pass
    wait_for_abort(stack)
    [row] = acme.usage(1)
    assert (row.status, row.completion_tokens) == ("cancelled", 1)


@asynccontextmanager
async def async_client(customer: Customer) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{customer.web.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=customer.api_key, max_retries=0) as client:
        yield client


async def read(client: openai.AsyncOpenAI, number: int) -> str:
    create = client.chat.completions.create
    if number % 2:
        return (await create(**CHAT)).choices[0].message.content or ""
    stream = await create(**CHAT, stream=True)
    return "".join([one.choices[0].delta.content or "" async for one in stream])


async def read_all(customer: Customer, num_requests: int) -> list[str]:
    async with async_client(customer) as client:
        return await asyncio.gather(*(read(client, number) for number in range(num_requests)))


async def leave_all(stack: Stack, customer: Customer, num_requests: int) -> None:
    async with async_client(customer) as client:
        tasks = [asyncio.create_task(read(client, number)) for number in range(num_requests)]
        async with asyncio.timeout(60):
            while num_running(stack) < num_requests:
                await asyncio.sleep(0.02)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        # The client itself takes its time to close so many.
        await asyncio.to_thread(wait_for_abort, stack, 5.0)


def test_fifty_at_once(stack: Stack, acme: Customer) -> None:
    behave(stack, token_interval_s=0.02)
    assert asyncio.run(read_all(acme, 50)) == ["Hello world! ✓"] * 50
    rows = acme.usage(50)
    assert {(row.status, row.completion_tokens) for row in rows} == {("finished", 5)}


@pytest.mark.case("C104")
def test_two_hundred_cancelled_at_once(stack: Stack, acme: Customer) -> None:
    """Half of them streams. One row each, and nothing works on."""
    behave(stack, tokens=["x"] * 400, token_interval_s=0.2)
    asyncio.run(leave_all(stack, acme, 200))
    assert {row.status for row in acme.usage(200)} == {"cancelled"}


async def ask_or_leave(client: openai.AsyncOpenAI, after_s: float) -> str | None:
    try:
        async with asyncio.timeout(after_s):
            answer = await client.chat.completions.create(**CHAT | {"model": "bot"})
    except TimeoutError:
        return None
    return answer.system_fingerprint


async def mixed(customers: tuple[Customer, Customer], num_each: int) -> list[list[str | None]]:
    """What each customer was served by; of theirs half is left at some moment."""
    chance = random.Random(7)
    async with async_client(customers[0]) as one, async_client(customers[1]) as other:
        found = await asyncio.gather(
            *(
                ask_or_leave(client, chance.choice([60.0, chance.random() * 0.5]))
                for _ in range(num_each)
                for client in (one, other)
            )
        )
    return [found[0::2], found[1::2]]


@pytest.mark.case("C119")
def test_who_leaves_at_any_moment_leaves_nothing_to_another(
    stack: Stack, acme: Customer, globex: Customer
) -> None:
    """At peers a reply that was not waited for was read by the connection's next user."""
    behave(stack, token_interval_s=0.02)
    digests = [stack.activate(one, "bot") for one in (acme, globex)]
    for found, digest in zip(asyncio.run(mixed((acme, globex), 100)), digests, strict=True):
        assert None in found and set(found) == {None, digest}
    wait_for("the aborts", lambda: not num_running(stack))
