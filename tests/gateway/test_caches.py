"""The cache of keys and pointers: one load for many askers, and nothing older than promised."""

import asyncio
import threading

import pytest

from gateway import metrics
from gateway.caches import TenantCache
from gateway.invalidation import Notice, read_notice
from tenants.errors import ApiError

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
    return TenantCache("test", ttl_s, lambda key, _: key[0], asyncio.to_thread)


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
        (b'{"tenant_id": 7, "what": "x", "sent_at": 1.5}', Notice(7, 1.5)),
        (b'{"tenant_id": 7}', Notice(7, None)),
        (b'{"tenant_id": 7, "sent_at": "noon"}', Notice(7, None)),
        (b"{", Notice(None, None)),
        (b"[]", Notice(None, None)),
        (b'{"tenant_id": "7"}', Notice(None, None)),
    ],
)
def test_a_push_that_is_not_understood_names_nobody(raw: bytes, expected: Notice) -> None:
    assert read_notice(raw) == expected


def num_backstops() -> float:
    return metrics.BACKSTOPS.labels("test")._value.get()


async def test_what_changed_without_a_push_is_counted() -> None:
    cache, source, before = make_cache(ttl_s=0.05), Source(), num_backstops()
    await cache.get((1, "a"), source.load)
    await cache.get((1, "same"), lambda: 7)
    await asyncio.sleep(0.06)
    assert await cache.get((1, "a"), source.load) == 2
    await cache.get((1, "same"), lambda: 7)
    assert num_backstops() - before == 1
    await asyncio.sleep(0.06)

    def refuse() -> int:
        raise ApiError("invalid_api_key", 401, "revoked")

    for _ in range(2):
        with pytest.raises(ApiError):
            await cache.get((1, "a"), refuse)
    assert num_backstops() - before == 2
    # What a push has named is no surprise.
    cache.drop(1)
    await cache.get((1, "same"), lambda: 8)
    assert num_backstops() - before == 2


async def test_nobody_joins_a_load_older_than_a_lifetime() -> None:
    cache, source = make_cache(ttl_s=0.1), Source()
    source.gate.clear()
    early = asyncio.create_task(cache.get((1, "a"), source.load))
    await asyncio.sleep(0.15)
    late = asyncio.create_task(cache.get((1, "a"), source.load))
    await asyncio.sleep(0.05)
    source.gate.set()
    assert (await early, await late) == (1, 2)


async def test_what_is_asked_for_all_the_time_is_renewed_before_its_end() -> None:
    cache, source = make_cache(ttl_s=0.4), Source()
    assert await cache.get((1, "a"), source.load) == 1
    source.gate.clear()
    await asyncio.sleep(0.35)
    # Nobody waits for the new answer, and it is asked for once.
    for _ in range(3):
        assert await asyncio.wait_for(cache.get((1, "a"), source.load), 0.04) == 1
    source.gate.set()
    await asyncio.sleep(0.03)
    assert await cache.get((1, "a"), source.load) == 2


async def test_what_is_gone_at_its_renewal_is_gone_at_once() -> None:
    cache, source = make_cache(ttl_s=0.8), Source()

    def gone() -> int:
        raise ApiError("invalid_api_key", 401, "revoked")

    assert await cache.get((1, "a"), source.load) == 1
    await asyncio.sleep(0.65)
    assert await cache.get((1, "a"), gone) == 1
    await asyncio.sleep(0.1)
    with pytest.raises(ApiError):
        await cache.get((1, "a"), gone)
