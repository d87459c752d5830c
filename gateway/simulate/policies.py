"""Ways to choose a replica: ours, which is production's code, and what it is compared with.

Each gateway has a policy of its own. It gives an order to try; the first that is alive serves.
"""

import random
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Protocol

from adapters.rendezvous import score
from gateway.router import MIN_BOUND, Snapshot, Wish, rank
from gateway.simulate.traffic import Arrival
from gateway.spreads import Spreads

# Points of each replica on the ring; fewer are lumpy.
NUM_POINTS = 250
NUM_TRIES = 3
# What gateways with bounded loads use.
RING_LOAD_FACTOR = 1.25


class Policy(Protocol):
    def order(self, arrival: Arrival, fleet: Sequence[Snapshot], now_s: float) -> list[str]: ...
    def opened(self, digest: str) -> None: ...
    def closed(self, digest: str) -> None: ...


class Stateless:
    """What most policies are: nothing is counted."""

    def opened(self, digest: str) -> None:
        pass

    def closed(self, digest: str) -> None:
        pass


class Ours:
    """Holds what placement gave each replica; see `gateway.router` and `gateway.spreads`."""

    def __init__(self, seed: int) -> None:
        self._spreads = Spreads()
        self.opened: Callable[[str | None], None] = self._spreads.opened
        self.closed: Callable[[str | None], None] = self._spreads.closed

    def order(self, arrival: Arrival, fleet: Sequence[Snapshot], now_s: float) -> list[str]:
        num_replicas = self._spreads.num_replicas(arrival.digest, fleet, now_s)
        wish = Wish(arrival.digest, arrival.prefix, num_replicas)
        return [one.url for one in rank(wish, fleet)]


class OneHome(Stateless):
    """Ours without the spread: every digest has one home, and overflow alone evens the load out."""

    def __init__(self, seed: int) -> None:
        pass

    def order(self, arrival: Arrival, fleet: Sequence[Snapshot], now_s: float) -> list[str]:
        return [one.url for one in rank(Wish(arrival.digest, arrival.prefix), fleet)]


class Random(Stateless):
    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def order(self, arrival: Arrival, fleet: Sequence[Snapshot], now_s: float) -> list[str]:
        urls = [one.url for one in fleet if one.is_ready]
        self._draw.shuffle(urls)
        return urls


class RoundRobin(Stateless):
    def __init__(self, seed: int) -> None:
        self._next = seed

    def order(self, arrival: Arrival, fleet: Sequence[Snapshot], now_s: float) -> list[str]:
        urls = [one.url for one in fleet if one.is_ready]
        self._next += 1
        first = self._next % max(1, len(urls))
        return urls[first:] + urls[:first]


@lru_cache(maxsize=64)
def ring(urls: frozenset[str]) -> tuple[tuple[int, str], ...]:
    return tuple(sorted((score(str(n), url), url) for url in urls for n in range(NUM_POINTS)))


def walk(digest: str, urls: frozenset[str]) -> Iterator[str]:
    """The replicas in the order in which the ring meets them from the digest on."""
    points = ring(urls)
    start = bisect(points, (score(digest, ""), ""))
    seen: set[str] = set()
    for number in range(len(points)):
        url = points[(start + number) % len(points)][1]
        if url not in seen:
            seen.add(url)
            yield url


class Consistent(Stateless):
    """A hash ring with virtual nodes, blind to load."""

    def __init__(self, seed: int) -> None:
        pass

    def order(self, arrival: Arrival, fleet: Sequence[Snapshot], now_s: float) -> list[str]:
        urls = frozenset(one.url for one in fleet if one.is_ready)
        return list(islice(walk(arrival.digest, urls), NUM_TRIES))


class Bounded(Stateless):
    """The ring with bounded loads: the first that is below the bound."""

    def __init__(self, seed: int) -> None:
        pass

    def order(self, arrival: Arrival, fleet: Sequence[Snapshot], now_s: float) -> list[str]:
        loads = {one.url: one.load for one in fleet if one.is_ready}
        bound = max(MIN_BOUND, RING_LOAD_FACTOR * (sum(loads.values()) + 1) / max(1, len(loads)))
        below = (url for url in walk(arrival.digest, frozenset(loads)) if loads[url] < bound)
        return list(islice(below, NUM_TRIES)) or sorted(loads, key=lambda url: loads[url])


# Whether only the replicas that placement chose hold a digest; else all do, and load on demand.
POLICIES: dict[str, tuple[Callable[[int], Policy], bool]] = {
    "ours": (Ours, True),
    "one home": (OneHome, True),
    "consistent": (Consistent, False),
    "bounded": (Bounded, False),
    "round robin": (RoundRobin, False),
    "random": (Random, False),
}
