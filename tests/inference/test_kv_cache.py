"""The block bookkeeping alone: sharing, eviction, and the wall between namespaces."""

import random

import pytest

from inference.kv_cache import KvCache, Namespace

BASE = Namespace(None, "")
A = Namespace("a" * 64, "")


def fill(cache: KvCache, namespace: Namespace, tokens: list[int]) -> list[int]:
    blocks = cache.allocate(cache.num_blocks_for(len(tokens)))
    assert blocks is not None
    cache.commit(namespace, tokens, blocks, [])
    return blocks


def test_it_works() -> None:
    cache = KvCache(9, 4)
    blocks = fill(cache, BASE, list(range(10)))
    cache.release(blocks)
    assert cache.match(BASE, list(range(10))).blocks == tuple(blocks[:2])
    assert cache.num_free == cache.num_usable == 8
    cache.check_integrity([])


def test_one_token_is_always_left_to_compute() -> None:
    cache = KvCache(9, 4)
    fill(cache, BASE, list(range(8)))
    assert len(cache.match(BASE, list(range(8))).blocks) == 1
    assert len(cache.match(BASE, list(range(9))).blocks) == 2


@pytest.mark.case("C65")
@pytest.mark.parametrize(
    "other",
    [
        A,
        Namespace(None, "tenant"),
        Namespace("", ""),
        Namespace("a" * 64, "tenant"),
        # What a glued "digest:salt" could not tell apart.
        Namespace("a" * 63, "a"),
    ],
)
def test_namespaces_share_nothing(other: Namespace) -> None:
    cache = KvCache(9, 4)
    fill(cache, BASE, list(range(8)))
    assert cache.match(other, list(range(9))).blocks == ()


def test_equal_tokens_after_different_beginnings_are_different_blocks() -> None:
    cache = KvCache(9, 2)
    fill(cache, BASE, [1, 2, 7, 8])
    fill(cache, BASE, [3, 4, 7, 8])
    one, two = (cache.match(BASE, [*begin, 7, 8, 0]).blocks for begin in ([1, 2], [3, 4]))
    assert len({*one, *two}) == 4


def test_the_least_recently_used_leaves_first_and_leaves_before_parents() -> None:
    cache = KvCache(5, 2)
    old, new = fill(cache, BASE, [1, 2, 3, 4]), fill(cache, A, [1, 2, 3, 4])
    cache.release(old)
    cache.release(new)
    assert cache.allocate(1) == [old[1]]
    assert cache.match(BASE, [1, 2, 3, 4, 5]).blocks == (old[0],)
    assert len(cache.match(A, [1, 2, 3, 4, 5]).blocks) == 2


def test_a_block_in_use_is_never_handed_out() -> None:
    cache = KvCache(3, 2)
    blocks = fill(cache, BASE, [1, 2, 3, 4])
    assert cache.allocate(1) is None
    cache.check_integrity([blocks])


def test_off_means_off() -> None:
    cache = KvCache(9, 4, prefix_cache=False)
    blocks = fill(cache, BASE, list(range(8)))
    cache.release(blocks)
    assert cache.match(BASE, list(range(9))).blocks == ()


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_use_keeps_the_books(seed: int) -> None:
    chance = random.Random(seed)
    cache = KvCache(17, 2)
    held: list[list[int]] = []
    for _ in range(400):
        if held and (chance.random() < 0.4 or cache.num_free < 4):
            cache.release(held.pop(chance.randrange(len(held))))
        else:
            namespace = chance.choice([BASE, A])
            tokens = [chance.randrange(2) for _ in range(chance.randrange(1, 9))]
            prefix = cache.match(namespace, tokens)
            missing = cache.num_blocks_for(len(tokens)) - len(prefix.blocks)
            if missing > cache.num_free - cache.num_unreferenced(prefix.blocks):
                continue
            cache.acquire(prefix.blocks)
            fresh = cache.allocate(missing)
            assert fresh is not None
            held.append([*prefix.blocks, *fresh])
            cache.commit(namespace, tokens, held[-1], list(prefix.nodes))
        cache.check_integrity(held)
