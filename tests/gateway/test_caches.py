"""The cache of keys and pointers: one load for many askers, and nothing older than promised."""

import asyncio
import threading

import pytest

from gateway.caches import TenantCache
from gateway.runtime import tenant_of

Key = tuple[int, str]


class Source:
    """A database look-up that counts, and waits when told to."""

    def __init__(self) -> None:
        self.num_loads = 0
        self.gate = threading.Event()
        self.gate.set()

    def load(self) -> int:
        self.num_loads += 1
        number = self.num_loads
        self.gate.wait(5)
        return number


def make_cache(ttl_s: float = 10.0) -> TenantCache[int]:
    return TenantCache(ttl_s, lambda key, _: key[0])


async def test_it_works() -> None:
    cache, source = make_cache(), Source()
    assert [await cache.get((1, "a"), source.load) for _ in range(3)] == [1, 1, 1]


async def test_askers_at_once_share_a_load() -> None:
    cache, source = make_cache(), Source()
    answers = await asyncio.gather(*(cache.get((1, "a"), source.load) for _ in range(20)))
    assert (answers, source.num_loads) == ([1] * 20, 1)


async def test_an_entry_ages_from_before_its_question() -> None:
    cache, source = make_cache(ttl_s=0.1), Source()
    source.gate.clear()
    asked = asyncio.create_task(cache.get((1, "a"), source.load))
    await asyncio.sleep(0.15)
    source.gate.set()
    assert await asked == 1
    # The answer was already older than its lifetime when it came.
    assert await cache.get((1, "a"), source.load) == 2


async def test_a_push_drops_that_tenant_alone() -> None:
    cache, source = make_cache(), Source()
    for tenant_id in (1, 2):
        await cache.get((tenant_id, "a"), source.load)
    cache.drop(1)
    assert await cache.get((2, "a"), source.load) == 2
    assert await cache.get((1, "a"), source.load) == 3
    cache.drop(None)
    assert await cache.get((2, "a"), source.load) == 4


async def test_an_answer_asked_for_before_a_push_is_not_kept() -> None:
    cache, source = make_cache(), Source()
    source.gate.clear()
    asked = asyncio.create_task(cache.get((1, "a"), source.load))
    await asyncio.sleep(0.05)
    cache.drop(1)
    source.gate.set()
    assert await asked == 1
    assert await cache.get((1, "a"), source.load) == 2


async def test_errors_are_not_kept_and_an_asker_that_leaves_harms_nobody() -> None:
    cache, source = make_cache(), Source()

    def fail() -> int:
        raise LookupError

    with pytest.raises(LookupError):
        await cache.get((1, "a"), fail)
    source.gate.clear()
    leaving = asyncio.create_task(cache.get((1, "a"), source.load))
    staying = asyncio.create_task(cache.get((1, "a"), source.load))
    await asyncio.sleep(0.05)
    leaving.cancel()
    source.gate.set()
    assert await staying == 1


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"tenant_id": 7, "what": "x"}', 7),
        (b"{", None),
        (b"[]", None),
        (b'{"tenant_id": "7"}', None),
    ],
)
def test_a_push_that_is_not_understood_drops_everything(raw: bytes, expected: int | None) -> None:
    assert tenant_of(raw) == expected
