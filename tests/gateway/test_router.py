"""The choice of a replica, as pure functions: stable, minimal in movement, bounded in load."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.rendezvous import KEEP_S, ranked_for
from gateway.prefix import NUM_HEAD, prefix_key
from gateway.router import LOAD_FACTOR, MIN_BOUND, Snapshot, Wish, current_load
from gateway.router import rank as rank_wish
from gateway.spreads import Spreads


def snapshot(url: str, *digests: str, load: int = 0, **fields: Any) -> Snapshot:
    return Snapshot(url, fields.pop("is_ready", True), frozenset(digests), load, 2048, **fields)


def rank(
    digest: str | None, prefix: str, fleet: list[Snapshot], num_replicas: int = 1
) -> list[Snapshot]:
    return rank_wish(Wish(digest, prefix, num_replicas), fleet)


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


def fleet_of(number: int, *digests: str, **loads: int) -> list[Snapshot]:
    return [snapshot(f"r{n}", *digests, load=loads.get(f"r{n}", 0)) for n in range(number)]


def test_a_draining_replica_gets_nothing_new() -> None:
    fleet = [snapshot("a", "d", is_draining=True), snapshot("b", "d")]
    assert urls(rank("d", "", fleet)) == urls(rank(None, "", fleet)) == ["b"]


def test_who_drains_goes_on_with_what_nobody_else_has_yet() -> None:
    """One replica an adapter: until placement has put it elsewhere, that one serves it."""
    leaving, staying = snapshot("a", "d", is_draining=True), snapshot("b")
    assert urls(rank("d", "", [leaving, staying])) == ["a"]
    assert urls(rank(None, "", [leaving, staying])) == ["b"]
    assert urls(rank("d", "", [leaving, snapshot("b", "d")])) == ["b"]
    # There is none to put it on, or the one that drains is gone.
    assert urls(rank("d", "", [leaving, snapshot("b", is_ready=False)])) == []
    assert (
        urls(rank("d", "", [snapshot("a", "d", is_draining=True, is_ready=False), staying])) == []
    )


def test_who_used_another_version_is_not_asked_for_this_one() -> None:
    fleet = [snapshot("a", "d", "e", doubted=frozenset({"d"})), snapshot("b", "d", "e")]
    assert urls(rank("d", "", fleet)) == ["b"]
    assert set(urls(rank("e", "", fleet))) == set(urls(rank(None, "", fleet))) == {"a", "b"}
    base = [snapshot("a", "d", doubted=frozenset({None})), snapshot("b", load=9)]
    assert urls(rank(None, "", base)) == ["b"] and urls(rank("d", "", base)) == ["a"]


def test_a_digest_goes_where_placement_puts_it() -> None:
    digests = [f"digest-{number}" for number in range(200)]
    fleet = fleet_of(8, *digests)
    for digest in digests:
        placed = ranked_for(digest, frozenset(urls(fleet)))
        assert urls(rank(digest, "", fleet)) == list(placed)


def test_prefixes_keep_to_one_of_a_digests_homes_and_use_all_of_them() -> None:
    fleet = fleet_of(8, "d")
    homes = set(urls(rank("d", "", fleet))[:3])
    firsts = [rank("d", f"talk-{number}", fleet, num_replicas=3)[0].url for number in range(60)]
    assert set(firsts) == homes
    again = [
        rank("d", f"talk-{number}", fleet[::-1], num_replicas=3)[0].url for number in range(60)
    ]
    assert again == firsts


def test_beyond_the_mean_a_spread_digest_goes_by_load() -> None:
    fleet = fleet_of(4, "d")
    homes = urls(rank("d", "talk", fleet, num_replicas=3))[:3]
    loads = dict(zip(homes, (40, 39, 12), strict=True))
    busy = [snapshot(one.url, "d", load=loads.get(one.url, 40)) for one in fleet]
    order = urls(rank("d", "talk", busy, num_replicas=3))
    assert order[:3] == [homes[2], homes[1], homes[0]]


def test_overflow_prefers_a_replica_whose_device_has_it() -> None:
    order = urls(rank("d", "", fleet_of(4, "d")))
    on_device = {order[3]: frozenset({"d"})}
    busy = [
        snapshot(
            url, "d", load=40 if url == order[0] else 1, on_device=on_device.get(url, frozenset())
        )
        for url in order
    ]
    assert urls(rank("d", "", busy)) == [order[3], order[1], order[2], order[0]]


def test_load_counts_what_was_sent_since_the_report() -> None:
    assert current_load(num_reported=5, num_sent=3, num_sent_at_report=1) == 7
    assert current_load(num_reported=5, num_sent=1, num_sent_at_report=4) == 2
    # An engine that reports none: what this process sent.
    assert current_load(num_reported=0, num_sent=3, num_sent_at_report=3) == 3


def busy_fleet(**requests: int) -> list[Snapshot]:
    """Eight replicas with 16 requests each; of digests, what r0 reports."""
    first = snapshot("r0", load=16, num_requests=requests)
    return [first, *(snapshot(f"r{number}", load=16) for number in range(1, 8))]


def test_a_digests_spread_grows_at_once_and_shrinks_slowly() -> None:
    spreads = Spreads()
    assert spreads.num_replicas("cold", busy_fleet(), 0.0) == 1
    assert spreads.num_replicas("hot", busy_fleet(hot=11), 0.0) == 3
    assert spreads.num_replicas("hot", busy_fleet(), KEEP_S - 1) == 3
    # One at a time, and each after a pause of its own.
    assert spreads.num_replicas("hot", busy_fleet(), KEEP_S) == 2
    assert spreads.num_replicas("hot", busy_fleet(), KEEP_S + 1) == 2
    assert spreads.num_replicas("hot", busy_fleet(hot=6), 2 * KEEP_S - 1) == 2
    assert spreads.num_replicas("hot", busy_fleet(), 2 * KEEP_S) == 2
    assert spreads.num_replicas("hot", busy_fleet(), 3 * KEEP_S) == 1


def test_requests_of_engines_that_report_none_are_counted_here() -> None:
    spreads = Spreads()
    for _ in range(8):
        spreads.opened("hot")
    assert spreads.num_replicas("hot", busy_fleet(), 0.0) == 3
    for _ in range(8):
        spreads.closed("hot")
    assert spreads.num_replicas("hot", busy_fleet(), KEEP_S) == 2


def test_a_quiet_fleet_spreads_nothing() -> None:
    idle = fleet_of(8, "d")
    assert Spreads().num_replicas("d", idle, 0.0) == 1


def test_a_prefix_is_a_conversations_beginning_in_its_namespace() -> None:
    system, first = {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}
    answer, second = {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Why?"}
    key = prefix_key("salt", {"messages": [system, first]})
    assert prefix_key("salt", {"messages": [system, first, answer, second]}) == key
    assert prefix_key("other", {"messages": [system, first]}) != key
    assert prefix_key("salt", {"messages": [system, second]}) != key
    long = "x" * NUM_HEAD
    assert prefix_key("s", {"prompt": long + "a"}) == prefix_key("s", {"prompt": long + "b"})
    assert prefix_key("s", {"prompt": [1, 2]}) != prefix_key("s", {"prompt": [1, 3]})
