"""Calls of a Lua script, many at once: each its own reply, error and fate."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import redis.asyncio
from django.conf import settings
from redis.exceptions import RedisError, ResponseError

from tenants.script_calls import ScriptCalls

ADD = """
if ARGV[1] == 'bad' then return redis.error_reply('ERR a bad call') end
return redis.call('INCRBY', KEYS[1], ARGV[1])
"""
KEYS = ["test:script-calls"]


@pytest.fixture
async def client() -> AsyncIterator["redis.asyncio.Redis"]:
    async with redis.asyncio.Redis.from_url(settings.REDIS_URL) as client:
        await client.delete(*KEYS)
        yield client
        await client.delete(*KEYS)


@asynccontextmanager
async def script_calls(client: "redis.asyncio.Redis") -> AsyncIterator[ScriptCalls]:
    calls = ScriptCalls(client, {"add": ADD}, timeout_s=2.0)
    try:
        yield calls
    finally:
        await calls.close()


@pytest.fixture
async def calls(client: "redis.asyncio.Redis") -> AsyncIterator[ScriptCalls]:
    async with script_calls(client) as calls:
        yield calls


async def test_it_works(calls: ScriptCalls) -> None:
    replies = await asyncio.gather(*(calls.call("add", KEYS, [1]) for _ in range(200)))
    assert replies == list(range(1, 201))


async def test_a_store_that_does_not_answer_is_given_up(client: "redis.asyncio.Redis") -> None:
    calls = ScriptCalls(client, {"add": ADD}, timeout_s=0.2)
    assert await calls.call("add", KEYS, [1]) == 1
    await client.client_pause(600)
    replies = await asyncio.gather(
        *(calls.call("add", KEYS, [1]) for _ in range(2)), return_exceptions=True
    )
    assert all(isinstance(reply, RedisError) for reply in replies)
    await client.client_unpause()
    assert await calls.call("add", KEYS, [0]) is not None
    await calls.close()


async def test_what_the_store_says_unasked_is_nobodys_reply(calls: ScriptCalls) -> None:
    assert await calls.call("add", KEYS, [1]) == 1
    wire = calls._wire
    assert wire is not None
    waiting = wire.ask(("PING",))
    wire.data_received(b">2\r\n+invalidate\r\n*0\r\n")
    assert await waiting == "PONG"


async def test_a_bad_call_takes_no_neighbour_along(
    client: "redis.asyncio.Redis", calls: ScriptCalls
) -> None:
    made = [calls.call("add", KEYS, [amount]) for amount in (1, "bad", 2)]
    replies = await asyncio.gather(*made, return_exceptions=True)
    assert replies[0] == 1
    assert isinstance(replies[1], ResponseError)
    assert replies[2] == 3


async def test_a_store_that_forgot_the_script_is_told_it_again(
    client: "redis.asyncio.Redis", calls: ScriptCalls
) -> None:
    for _ in range(2):
        await client.script_flush()
        assert len(await asyncio.gather(*(calls.call("add", KEYS, [1]) for _ in range(5)))) == 5
    assert int(await client.get(KEYS[0])) == 10


async def test_a_caller_that_left_leaves_nobody_elses_reply(
    client: "redis.asyncio.Redis", calls: ScriptCalls
) -> None:
    assert await calls.call("add", KEYS, [0]) == 0
    left = asyncio.create_task(calls.call("add", KEYS, [100]))
    await asyncio.sleep(0)
    stayed = asyncio.create_task(calls.call("add", KEYS, [1]))
    await asyncio.sleep(0)
    left.cancel()
    assert await stayed == 101
    assert await calls.call("add", KEYS, [1]) == 102


async def test_without_the_store_every_caller_is_told() -> None:
    async with (
        redis.asyncio.Redis.from_url("redis://127.0.0.1:1") as nowhere,
        script_calls(nowhere) as calls,
    ):
        for _ in range(2):
            made = [calls.call("add", KEYS, [1]) for _ in range(3)]
            replies = await asyncio.gather(*made, return_exceptions=True)
            assert all(isinstance(reply, RedisError | OSError) for reply in replies)


async def test_a_connection_that_the_store_closed_is_made_anew(
    client: "redis.asyncio.Redis", calls: ScriptCalls
) -> None:
    assert await calls.call("add", KEYS, [1]) == 1
    await client.client_kill_filter(_type="normal", skipme=True)
    assert await calls.call("add", KEYS, [1]) == 2
