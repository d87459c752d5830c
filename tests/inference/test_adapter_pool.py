"""Residency alone: pages, leases, pins, tiers."""

import random

import pytest

from inference.adapter import Adapter, Placement
from inference.adapter_pool import AdapterPool
from inference.errors import EngineError, ErrorCode


def add(pool: AdapterPool, name: str, num_pages: int = 1, num_bytes: int = 10) -> str:
    digest = f"digest-{name}"
    adapter = pool.register(name, Adapter(digest, "", num_pages * 8, num_pages, num_bytes))
    read(pool, adapter)
    return digest


def read(pool: AdapterPool, adapter: Adapter) -> None:
    """From disk to the host."""
    assert pool.start_read(adapter)
    pool.end_read(adapter, arrived=True)


def use(pool: AdapterPool, digest: str) -> bool:
    """Claim and lease, as an admitted request does, and the copy; whether there was one."""
    assert pool.placement(digest) is Placement.READY
    pool.claim(digest)
    must_copy = pool.lease(digest)
    if must_copy:
        pool.copied(known(pool, digest))
    return must_copy


def known(pool: AdapterPool, digest: str) -> Adapter:
    adapter = pool.find(digest)
    assert adapter is not None
    return adapter


def done(pool: AdapterPool, digest: str) -> None:
    pool.release(digest)
    pool.unclaim(digest)


def tiers(pool: AdapterPool) -> dict[str, str]:
    return {name: adapter.tier for adapter in pool for name in adapter.names}


def test_it_works() -> None:
    pool = AdapterPool(num_pages=4, max_active=2, num_host_pages=100)
    a = add(pool, "a")
    assert use(pool, a) is True
    assert use(pool, a) is False
    pool.check_integrity({a: 2}, {a: 2})
    done(pool, a)
    done(pool, a)
    assert pool.num_active == 0
    pool.check_integrity({}, {})


def test_pages_are_taken_by_real_rank_and_lru_goes_first() -> None:
    pool = AdapterPool(num_pages=4, max_active=4, num_host_pages=100)
    big, small, other = add(pool, "big", 2), add(pool, "small"), add(pool, "other", 2)
    for digest in (big, small):
        use(pool, digest)
        done(pool, digest)
    assert use(pool, small) is False
    done(pool, small)
    assert use(pool, other) is True
    assert tiers(pool) == {"big": "host", "small": "device", "other": "device"}
    assert pool.num_device_evictions == 1


def test_a_leased_adapter_never_leaves() -> None:
    pool = AdapterPool(num_pages=2, max_active=4, num_host_pages=100)
    a, b = add(pool, "a", 2), add(pool, "b", 1)
    use(pool, a)
    assert pool.placement(b) is Placement.NO_ROOM
    done(pool, a)
    assert pool.placement(b) is Placement.READY


@pytest.mark.case("C71")
def test_the_cap_on_active_adapters_holds_though_pages_are_free() -> None:
    pool = AdapterPool(num_pages=8, max_active=2, num_host_pages=100)
    a, b, c = (add(pool, name) for name in "abc")
    use(pool, a)
    use(pool, b)
    assert pool.placement(c) is Placement.NO_ROOM
    assert pool.placement(a) is Placement.READY


@pytest.mark.case("C67")
def test_unload_waits_for_the_last_claim() -> None:
    pool = AdapterPool(num_pages=2, max_active=2, num_host_pages=100)
    a = add(pool, "a")
    use(pool, a)
    assert pool.unbind("a") is None
    assert pool.resolve("a") is None and pool.find(a) is not None
    pool.release(a)
    gone = pool.unclaim(a)
    assert gone is not None and gone.digest == a and pool.find(a) is None
    pool.check_integrity({}, {})


def test_two_names_of_one_version_are_one_adapter() -> None:
    pool = AdapterPool(num_pages=2, max_active=2, num_host_pages=100)
    a = add(pool, "a")
    adapter = pool.find(a)
    assert adapter is not None
    pool.register("b", adapter)
    assert pool.unbind("a") is None
    assert pool.resolve("b") == a
    assert pool.unbind("b") is adapter


def test_the_host_tier_keeps_to_its_bytes() -> None:
    pool = AdapterPool(num_pages=2, max_active=2, num_host_pages=2)
    a, b = add(pool, "a"), add(pool, "b")
    c = add(pool, "c")
    assert tiers(pool) == {"a": "disk", "b": "host", "c": "host"}
    assert pool.placement(a) is Placement.NOT_ON_HOST
    pool.claim(b)
    add(pool, "d")
    assert tiers(pool) == {"a": "disk", "b": "host", "c": "disk", "d": "host"}
    pool.claim("digest-d")
    pool.claim(c)
    # Both wait for the device: neither gives way.
    assert not pool.start_read(known(pool, c))
    pool.check_integrity({b: 1, c: 1, "digest-d": 1}, {})


def test_a_pinned_adapter_is_placed_and_stays() -> None:
    pool = AdapterPool(num_pages=2, max_active=2, num_host_pages=100)
    a, b, c = (add(pool, name) for name in "abc")
    adapter = pool.find(a)
    assert adapter is not None
    pool.pin(adapter)
    assert pool.place_pinned() == [adapter]
    pool.copied(adapter)
    for digest in (b, c, b, c):
        use(pool, digest)
        done(pool, digest)
    assert adapter.slot is not None
    other = pool.find(b)
    assert other is not None
    with pytest.raises(EngineError) as refused:
        pool.pin(other)
    assert refused.value.code is ErrorCode.OVERLOADED
    pool.check_integrity({}, {})
    # Unpinned it leaves as any other does, and the room to pin is another's.
    pool.unpin(adapter)
    for digest in (b, c):
        use(pool, digest)
        done(pool, digest)
    assert adapter.slot is None
    pool.pin(other)
    pool.check_integrity({}, {})


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_use_keeps_the_books(seed: int) -> None:
    chance = random.Random(seed)
    pool = AdapterPool(num_pages=6, max_active=3, num_host_pages=10)
    digests = [add(pool, str(i), chance.randrange(1, 4)) for i in range(9)]
    held: list[str] = []
    for _ in range(500):
        if held and chance.random() < 0.5:
            done(pool, held.pop(chance.randrange(len(held))))
        else:
            digest = chance.choice(digests)
            if pool.placement(digest) is Placement.NOT_ON_HOST:
                read(pool, known(pool, digest))
            if pool.placement(digest) is Placement.READY:
                use(pool, digest)
                held.append(digest)
        counts = {digest: held.count(digest) for digest in held}
        pool.check_integrity(counts, counts)


def test_pages_that_a_running_step_may_read_are_not_quiet() -> None:
    pool = AdapterPool(num_pages=1, max_active=1, num_host_pages=9, copies_ahead=True)
    a, b = add(pool, "a"), add(pool, "b")

    def placed(digest: str) -> bool:
        pool.claim(digest)
        assert pool.place(digest, only_unclaimed=False)
        pool.copied(known(pool, digest))
        return known(pool, digest).is_quiet

    assert placed(a)
    pool.lease(a)
    pool.start_step()
    done(pool, a)
    # The step of the next plan was launched before it was known that "a" had ended.
    assert not placed(b)
    pool.unclaim(b)
    for _ in range(3):
        pool.start_step()
    assert placed(a)


def test_what_costs_more_to_bring_back_stays_longer() -> None:
    pool = AdapterPool(num_pages=2, max_active=2, num_host_pages=2)
    cheap, dear = add(pool, "cheap"), add(pool, "dear")
    known(pool, cheap).is_compiled = True
    pool.touch(known(pool, cheap))
    # Used last, but read from a compiled file at once; the other would be packed again.
    add(pool, "new")
    assert tiers(pool) == {"cheap": "disk", "dear": "host", "new": "host"}
    assert known(pool, dear).on_host


@pytest.mark.parametrize("copies_ahead", [False, True])
def test_a_failed_copy_frees_the_pages_and_a_done_one_stays(copies_ahead: bool) -> None:
    pool = AdapterPool(2, 2, num_host_pages=9, copies_ahead=copies_ahead)
    a, b = known(pool, add(pool, "a")), known(pool, add(pool, "b"))
    for adapter in (a, b):
        pool.pin(adapter) if adapter is a else pool.claim(adapter.digest)
        # Its compiled file is being written meanwhile.
        pool.use_host(adapter)
    assert pool.place_pinned() == [a]
    pool.copied(a)
    pool.copy_failed(a)
    assert (a.tier, a.num_host_uses) == ("device", 1)
    if copies_ahead:
        assert pool.place(b.digest, only_unclaimed=False)
    else:
        pool.lease(b.digest)
        pool.release(b.digest)
    pool.copy_failed(b)
    assert (b.tier, b.num_host_uses) == ("host", 1)
    assert pool.num_evictions["device", "failed"] == 1
    pool.check_integrity({b.digest: 1}, {})


def test_a_pin_leaves_room_for_the_largest_that_may_still_come() -> None:
    """Else an adapter of the largest rank, loaded later, would wait for ever."""
    pool = AdapterPool(num_pages=4, max_active=2, num_host_pages=100)
    first, second = (pool.register(name, Adapter(name, "", 8, 1, 1)) for name in "ab")
    pool.pin(first)
    pool.pin(second)
    with pytest.raises(EngineError, match="cannot pin"):
        pool.pin(pool.register("c", Adapter("c", "", 8, 1, 1)))
