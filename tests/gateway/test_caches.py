"""The cache of keys and pointers: one load for many askers, and nothing older than promised."""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest
from django.utils import timezone

from gateway import caches, metrics
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


async def test_few_look_ups_run_at_once_and_those_that_wait_have_not_asked() -> None:
    cache, source = make_cache(ttl_s=0.1), Source()
    source.gate.clear()
    asked = [asyncio.create_task(cache.get((n, "a"), source.load)) for n in range(10)]
    await asyncio.sleep(0.15)
    assert source.num_loads == caches.MAX_LOADS
    # Whoever waits longer than a lifetime asks once all the same, and after the change.
    cache.drop(9)
    joined = asyncio.create_task(cache.get((9, "a"), source.load))
    await asyncio.sleep(0.01)
    source.gate.set()
    assert await joined == await asked[9]
    assert sorted(await asyncio.gather(*asked)) == list(range(1, 11))
    assert source.num_loads == 10
    assert await cache.get((9, "a"), source.load) == await joined


EVERYBODY, NOBODY = frozenset({None}), frozenset[int | None]()


async def test_what_a_poll_proves_is_kept_for_a_lifetime_more() -> None:
    cache, source = make_cache(ttl_s=0.1), Source()
    for tenant_id in (1, 2):
        await cache.get((tenant_id, "a"), source.load)
    for _ in range(5):
        await asyncio.sleep(0.06)
        cache.prove(time.monotonic(), NOBODY)
        assert [await cache.get((n, "a"), source.load) for n in (1, 2)] == [1, 2]
    cache.prove(time.monotonic(), frozenset({1}))
    assert [await cache.get((n, "a"), source.load) for n in (1, 2)] == [3, 2]
    # Polls stall: what is kept is too old, as if there were none.
    await asyncio.sleep(0.11)
    assert [await cache.get((n, "a"), source.load) for n in (1, 2)] == [4, 5]
    cache.prove(time.monotonic(), EVERYBODY)
    assert [await cache.get((n, "a"), source.load) for n in (1, 2)] == [6, 7]


async def test_a_poll_proves_from_its_begin() -> None:
    cache, source = make_cache(ttl_s=0.1), Source()
    await cache.get((1, "a"), source.load)
    began = time.monotonic()
    await asyncio.sleep(0.12)
    cache.prove(began, NOBODY)
    assert await cache.get((1, "a"), source.load) == 2


async def test_an_answer_asked_for_before_a_poll_told_is_not_kept() -> None:
    """It may have seen the rows from before the change, and the poll after this one is silent."""
    cache, source = make_cache(), Source()
    source.gate.clear()
    asked = asyncio.create_task(cache.get((1, "a"), source.load))
    await asyncio.sleep(0.05)
    cache.prove(time.monotonic(), frozenset({1}))
    late = asyncio.create_task(cache.get((1, "a"), source.load))
    await asyncio.sleep(0.05)
    source.gate.set()
    assert (await asked, await late) == (1, 2)
    assert await cache.get((1, "a"), source.load) == 2


async def test_changes_told_by_polls_alone_are_counted_once() -> None:
    cache, source, before = make_cache(), Source(), num_backstops()
    await cache.get((1, "a"), source.load)
    await cache.get((1, "same"), lambda: 7)
    cache.prove(time.monotonic(), frozenset({1}))
    assert await cache.get((1, "a"), source.load) == 2
    assert await cache.get((1, "same"), lambda: 7) == 7
    assert num_backstops() - before == 1
    # Pushed as well: before the poll, or right after it.
    cache.drop(1)
    cache.prove(time.monotonic(), frozenset({1}))
    await cache.get((1, "a"), source.load)
    cache.prove(time.monotonic(), frozenset({1}))
    cache.drop(1)
    await cache.get((1, "a"), source.load)
    assert num_backstops() - before == 1


async def test_what_is_in_use_is_renewed_beside_those_who_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(caches, "RENEW_S", 0.05)
    cache, source = make_cache(), Source()
    assert await cache.get((1, "a"), source.load) == 1
    source.gate.clear()
    await asyncio.sleep(0.06)
    # Nobody waits for the new answer, and it is asked for once.
    for _ in range(3):
        assert await asyncio.wait_for(cache.get((1, "a"), source.load), 0.04) == 1
    source.gate.set()
    await asyncio.sleep(0.03)
    assert await cache.get((1, "a"), source.load) == 2


async def test_what_is_gone_at_its_renewal_is_gone_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "RENEW_S", 0.05)
    cache, source = make_cache(), Source()

    def gone() -> int:
        raise ApiError("invalid_api_key", 401, "revoked")

    assert await cache.get((1, "a"), source.load) == 1
    await asyncio.sleep(0.06)
    assert await cache.get((1, "a"), gone) == 1
    await asyncio.sleep(0.1)
    with pytest.raises(ApiError):
        await cache.get((1, "a"), gone)


async def test_a_value_ends_at_its_moment() -> None:
    """Also for who joined a look-up before it, and without being a surprise."""
    moment = timezone.now() + timedelta(seconds=0.3)
    cache = TenantCache[str](
        "test", 10.0, lambda key, _: key[0], asyncio.to_thread, {"old": moment}.get
    )
    before = num_backstops()

    def price(at: datetime, after_s: float = 0.0) -> str:
        time.sleep(after_s)
        return "old" if at < moment else "new"

    async def ask(after_s: float = 0.0) -> str:
        return await cache.get((1, "a"), price, timezone.now(), after_s)

    assert await ask() == "old"
    cache.drop(1)
    early = asyncio.create_task(ask(0.5))
    await asyncio.sleep((moment - timezone.now()).total_seconds() + 0.01)
    assert await asyncio.create_task(ask()) == "new"
    # Priced as of when it asked.
    assert await early == "old"
    assert await ask() == "new"
    assert num_backstops() == before


async def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "MAX_ENTRIES", 3)
    cache, source = make_cache(), Source()
    for name in "abcd":
        await cache.get((1, name), source.load)
    assert list(cache._entries) == [(1, name) for name in "bcd"]
    assert await cache.get((1, "b"), source.load) == 2
    assert await cache.get((1, "a"), source.load) == 5


class Books:
    """Rows, a log of who changed, and the looks at both: each look as slow as it likes."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.versions = dict.fromkeys(range(3), 0)
        # By tenant, when each version came.
        self.came: dict[int, list[float]] = {tenant_id: [0.0] for tenant_id in range(3)}
        self.log: list[int] = []

    async def write(self) -> None:
        while True:
            await asyncio.sleep(self.chance.uniform(0, 0.02))
            tenant_id = self.chance.randrange(3)
            self.versions[tenant_id] += 1
            self.came[tenant_id].append(time.monotonic())
            self.log.append(tenant_id)

    async def read(self, function: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(self.chance.uniform(0, 0.01))
        found = function(*args)
        await asyncio.sleep(self.chance.choice((0, 0, 0.01, 0.06)))
        return found


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_stale_outlives_a_lifetime(seed: int) -> None:
    """Looks that overtake each other, polls that stall: who asks is never told of what ended more
    than a lifetime, and the look that it waited for, ago.
    """
    chance, ttl_s = Random(seed), 0.1
    books = Books(chance)
    cache = TenantCache[int]("test", ttl_s, lambda key, _: key[0], books.read)

    async def poll() -> None:
        at = 0
        while True:
            began = time.monotonic()
            log = await books.read(lambda: list(books.log))
            cache.prove(began, frozenset(log[at:]))
            at = len(log)
            await asyncio.sleep(chance.choice((0.0, 0.03, 0.03, 0.15)))

    async def ask() -> None:
        nonlocal num_kept
        while True:
            tenant_id, began = chance.randrange(3), time.monotonic()
            version = await cache.get((tenant_id, "a"), books.versions.__getitem__, tenant_id)
            num_kept += time.monotonic() - began < 0.001
            # When the next version came, if it did.
            for ended in books.came[tenant_id][version + 1 : version + 2]:
                assert began - ended < ttl_s
            await asyncio.sleep(chance.uniform(0, 0.004))

    num_kept = 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2), asyncio.TaskGroup() as beside:
            for work in (books.write, poll, ask, ask, ask):
                beside.create_task(work())
    assert num_kept > 20
