"""The choice of a replica, as pure functions: stable, minimal in movement, bounded in load."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.router import LOAD_FACTOR, MIN_BOUND, Snapshot, rank


def snapshot(url: str, *digests: str, load: int = 0, is_ready: bool = True) -> Snapshot:
    return Snapshot(url, is_ready, frozenset(digests), load, 2048)


def urls(ranked: list[Snapshot]) -> list[str]:
    return [one.url for one in ranked]


names = st.lists(
    st.integers(0, 10**6).map("http://r{}".format), min_size=2, max_size=12, unique=True
)


def test_it_works() -> None:
    fleet = [snapshot("a", "d1"), snapshot("b"), snapshot("c", "d1", is_ready=False)]
    assert urls(rank("d1", "salt", fleet)) == ["a"]


@given(names, st.text(min_size=1, max_size=64))
def test_order_does_not_depend_on_the_order_of_the_table(fleet: list[str], digest: str) -> None:
    forward = [snapshot(url, digest) for url in fleet]
    assert urls(rank(digest, "", forward)) == urls(rank(digest, "", forward[::-1]))


@given(names, st.data())
def test_only_what_a_leaving_replica_served_moves(fleet: list[str], data: st.DataObject) -> None:
    digests = [f"digest-{number}" for number in range(50)]
    gone = data.draw(st.sampled_from(fleet))
    before = [snapshot(url, *digests) for url in fleet]
    after = [one for one in before if one.url != gone]
    for digest in digests:
        old = urls(rank(digest, "", before))
        # The survivors keep their order, so each digest moves to its own second choice.
        assert urls(rank(digest, "", after)) == [url for url in old if url != gone]


@given(names, st.data())
def test_never_a_replica_without_the_digest(fleet: list[str], data: st.DataObject) -> None:
    holders = data.draw(st.sets(st.sampled_from(fleet)))
    loads = st.integers(0, 50)
    table = [
        snapshot(url, *(["d"] if url in holders else []), load=data.draw(loads)) for url in fleet
    ]
    assert set(urls(rank("d", "", table))) == holders


@given(names, st.data())
def test_the_first_choice_is_below_the_bound_when_any_is(
    fleet: list[str], data: st.DataObject
) -> None:
    table = [snapshot(url, "d", load=data.draw(st.integers(0, 100))) for url in fleet]
    mean = (sum(one.load for one in table) + 1) / len(table)
    bound = max(MIN_BOUND, LOAD_FACTOR * mean)
    assert rank("d", "", table)[0].load < bound


def test_a_quiet_first_choice_keeps_its_adapter() -> None:
    table = [snapshot(f"http://r{number}", "d") for number in range(3)]
    first = rank("d", "", table)[0].url
    busier = [
        snapshot(one.url, "d", load=MIN_BOUND - 1 if one.url == first else 0) for one in table
    ]
    assert rank("d", "", busier)[0].url == first


def test_an_overloaded_first_choice_is_tried_last() -> None:
    table = [snapshot(f"http://r{number}", "d") for number in range(3)]
    order = urls(rank("d", "", table))
    busy = [snapshot(one.url, "d", load=40 if one.url == order[0] else 1) for one in table]
    assert urls(rank("d", "", busy)) == [*order[1:], order[0]]


def test_digests_spread_over_the_fleet() -> None:
    digests = [f"digest-{number}" for number in range(2000)]
    fleet = [snapshot(f"http://10.0.0.{number}:8100", *digests) for number in range(4)]
    counts = Counter(rank(digest, "", fleet)[0].url for digest in digests)
    # Binomial(2000, 1/4): five standard deviations are 97.
    assert all(abs(count - 500) < 100 for count in counts.values()), counts


@pytest.mark.parametrize("salt", ["one", "two", "three"])
def test_base_goes_by_load_and_a_quiet_fleet_keeps_a_tenant_together(salt: str) -> None:
    fleet = [snapshot(f"http://r{number}") for number in range(5)]
    first = rank(None, salt, fleet)[0]
    assert rank(None, salt, fleet[::-1])[0] == first
    busy = [snapshot(one.url, load=2 if one == first else 1) for one in fleet]
    assert rank(None, salt, busy)[-1].url == first.url


def test_no_replica() -> None:
    assert rank("d", "", []) == []
    assert rank(None, "", [snapshot("a", is_ready=False)]) == []
