"""Cases that name a number, at a size for two cores; at their own with CASES_AT_SCALE=1."""

import asyncio
import os
from collections.abc import Awaitable, Callable

import openai

from tests.gateway.conftest import Customer
from tests.gateway.live import Web

IS_FULL = bool(os.environ.get("CASES_AT_SCALE"))
NUM_AT_ONCE = 48


def client_of(web: Web, customer: Customer) -> openai.AsyncOpenAI:
    url = f"{web.url}/v1"
    return openai.AsyncOpenAI(base_url=url, api_key=customer.api_key, max_retries=0)


async def at_once(num_tasks: int, work: Callable[[int], Awaitable[None]]) -> None:
    """work(0…), NUM_AT_ONCE at a time."""
    numbers = iter(range(num_tasks))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(worker() for _ in range(NUM_AT_ONCE)))
