"""One scenario under one policy: arrivals, ends, polls, placement rounds and deaths in order of
time.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from gateway.simulate.fleet import Placement, Replica
from gateway.simulate.policies import POLICIES
from gateway.simulate.traffic import Arrival, Scenario, arrivals, churn
from gateway.simulate.views import Views

POLL_INTERVAL_S = 1.0
RECONCILE_INTERVAL_S = 2.0


@dataclass
class Result:
    """Of the time after the warm-up. ratios: each second's fullest replica over the mean."""

    policy: str
    measured_s: float
    num_requests: int = 0
    num_hits: int = 0
    num_swaps: int = 0
    num_loads: int = 0
    num_unserved: int = 0
    num_lost: int = 0
    num_prefix_hits: int = 0
    running_s: dict[str, float] = field(default_factory=dict)
    up_s: dict[str, float] = field(default_factory=dict)
    ratios: list[float] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        return self.num_hits / max(1, self.num_requests)

    @property
    def prefix_rate(self) -> float:
        return self.num_prefix_hits / max(1, self.num_requests)

    @property
    def swaps_per_minute(self) -> float:
        return 60 * self.num_swaps / self.measured_s

    @property
    def load_spread(self) -> float:
        """The fullest replica's mean of running requests over the mean replica's."""
        means = [self.running_s[url] / up_s for url, up_s in self.up_s.items() if up_s]
        return max(means) * len(means) / sum(means)

    @property
    def load_spread_each_second(self) -> float:
        return sum(self.ratios) / len(self.ratios)


class Run:
    def __init__(self, scenario: Scenario, policy: str) -> None:
        make, is_placed = POLICIES[policy]
        self.scenario = scenario
        self.result = Result(policy, scenario.duration_s - scenario.warm_up_s)
        numbers = range(scenario.num_replicas)
        urls = [f"http://10.0.{n // 250}.{n % 250 + 1}:8100" for n in numbers]
        self.replicas = [Replica(url, scenario.num_slots) for url in urls]
        self.by_url = {one.url: one for one in self.replicas}
        self.digests = [f"{number:064x}" for number in range(scenario.num_adapters)]
        self.all_held = None if is_placed else frozenset(self.digests)
        self.placement = Placement(self.digests, self.replicas)
        gateways = range(scenario.num_gateways)
        self.policies = [make(scenario.seed + number) for number in gateways]
        self.views = [Views(urls) for _ in gateways]
        self.last_place: dict[str, str] = {}
        self.result.running_s = dict.fromkeys(urls, 0.0)
        self.result.up_s = dict.fromkeys(urls, 0.0)
        self._order = count()
        self._ends: list[tuple[float, int, Arrival, Replica, int]] = []

    def events(self) -> Iterator[tuple[float, int, Any]]:
        """(when, kind, what): of equal times, polls and rounds before arrivals."""
        end = int(self.scenario.duration_s)
        streams = (
            ((at, 0, (number, is_up)) for at, number, is_up in churn(self.scenario)),
            ((n * RECONCILE_INTERVAL_S, 1, None) for n in range(end // 2)),
            ((n * POLL_INTERVAL_S, 2, None) for n in range(end)),
            ((one.at_s, 3, one) for one in arrivals(self.scenario)),
        )
        return heapq.merge(*streams, key=lambda event: event[:2])

    def play(self) -> Result:
        for at_s, kind, what in self.events():
            self._end_until(at_s)
            if kind == 0:
                self._churn(*what)
            elif kind == 1 and self.all_held is None:
                self.placement.reconcile(at_s)
            elif kind == 2:
                self._poll(at_s)
            elif kind == 3:
                self._arrive(what)
        return self.result

    def is_measured(self, at_s: float) -> bool:
        return at_s >= self.scenario.warm_up_s

    def _end_until(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] <= now_s:
            _, _, arrival, replica, generation = heapq.heappop(self._ends)
            self.views[arrival.gateway].send(replica.url, -1)
            self.policies[arrival.gateway].closed(arrival.digest)
            if replica.generation == generation:
                replica.give_back(arrival.digest)

    def _churn(self, number: int, is_up: bool) -> None:
        replica = self.replicas[number]
        if is_up:
            replica.is_up = True
            return
        self.result.num_lost += replica.num_running
        replica.die()
        kept = []
        for end in self._ends:
            if end[3] is not replica:
                kept.append(end)
                continue
            self.views[end[2].gateway].send(replica.url, -1)
            self.policies[end[2].gateway].closed(end[2].digest)
        self._ends = kept
        heapq.heapify(self._ends)

    def _poll(self, now_s: float) -> None:
        for replica in self.replicas:
            found = replica.report(self.all_held)
            for views in self.views:
                views.report(found)
        if self.is_measured(now_s):
            self._measure_load()

    def _measure_load(self) -> None:
        live = [one for one in self.replicas if one.is_up]
        for one in live:
            self.result.up_s[one.url] += POLL_INTERVAL_S
            self.result.running_s[one.url] += POLL_INTERVAL_S * one.num_running
        mean = sum(one.num_running for one in live) / max(1, len(live))
        if mean:
            self.result.ratios.append(max(one.num_running for one in live) / mean)

    def _arrive(self, arrival: Arrival) -> None:
        views = self.views[arrival.gateway]
        policy = self.policies[arrival.gateway]
        for url in policy.order(arrival, views.fleet(), arrival.at_s):
            replica = self.by_url[url]
            if replica.is_up:
                self._serve(arrival, replica)
                return
            # As in production: a request that cannot reach a replica marks it down at once.
            views.mark_down(url)
        if self.is_measured(arrival.at_s):
            self.result.num_unserved += 1

    def _serve(self, arrival: Arrival, replica: Replica) -> None:
        is_hit, is_swap = replica.take(arrival.digest)
        self.views[arrival.gateway].send(replica.url, 1)
        self.policies[arrival.gateway].opened(arrival.digest)
        takes_s = arrival.service_s + (0.0 if is_hit else self.scenario.load_s)
        end = (arrival.at_s + takes_s, next(self._order), arrival, replica, replica.generation)
        heapq.heappush(self._ends, end)
        if self.is_measured(arrival.at_s):
            self.result.num_requests += 1
            self.result.num_hits += is_hit
            self.result.num_loads += not is_hit
            self.result.num_swaps += is_swap
            self.result.num_prefix_hits += self.last_place.get(arrival.prefix) == replica.url
        self.last_place[arrival.prefix] = replica.url
