"""Who asks for what, and when: drawn from a seed, so that all policies meet the same requests."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

# Turns of a conversation share the beginning of their prompt; as many as these run at once for each
# adapter.
NUM_CONVERSATIONS = 20


@dataclass(frozen=True)
class Scenario:
    """A fleet and what it is asked.

    num_slots: adapters that a replica's device holds. requests_per_replica: that run there, on
    average. load_s: what a miss costs its request. churn_s: how often a replica dies, 0 for never;
    each comes back after down_s, empty.
    """

    num_adapters: int = 1000
    num_replicas: int = 8
    num_slots: int = 128
    exponent: float = 1.0
    requests_per_replica: float = 16.0
    mean_service_s: float = 4.0
    load_s: float = 0.1
    duration_s: float = 900.0
    warm_up_s: float = 300.0
    churn_s: float = 0.0
    down_s: float = 60.0
    num_gateways: int = 2
    seed: int = 1

    @property
    def rate(self) -> float:
        """Requests a second, of all replicas."""
        return self.requests_per_replica * self.num_replicas / self.mean_service_s

    def problem(self) -> str:
        """What no fleet can be; empty when there is nothing."""
        for name in ("num_adapters", "num_replicas", "num_slots", "num_gateways"):
            if getattr(self, name) < 1:
                return f"{name}: expected at least 1, got {getattr(self, name)}"
        for name in ("requests_per_replica", "mean_service_s", "duration_s"):
            if getattr(self, name) <= 0:
                return f"{name}: expected more than 0, got {getattr(self, name)}"
        for name in ("exponent", "load_s", "warm_up_s", "churn_s", "down_s"):
            if getattr(self, name) < 0:
                return f"{name}: expected 0 or more, got {getattr(self, name)}"
        if self.duration_s - self.warm_up_s < 1:
            return f"duration_s: expected more than warm_up_s ({self.warm_up_s}) by 1 at least"
        return ""


@dataclass(frozen=True)
class Arrival:
    at_s: float
    digest: str
    prefix: str
    gateway: int
    service_s: float


def arrivals(scenario: Scenario) -> Iterator[Arrival]:
    """Poisson in time, Zipf over adapters, log-normal in length (a coefficient of variation of 1.3,
    as of chats: many short, a few long).
    """
    draw = random.Random(scenario.seed)
    weights = [1 / rank**scenario.exponent for rank in range(1, scenario.num_adapters + 1)]
    cumulative = list(accumulate(weights))
    names = [f"{number:064x}" for number in range(scenario.num_adapters)]
    at_s = 0.0
    while (at_s := at_s + draw.expovariate(scenario.rate)) < scenario.duration_s:
        digest = draw.choices(names, cum_weights=cumulative)[0]
        prefix = f"{digest}/{draw.randrange(NUM_CONVERSATIONS)}"
        # exp(mu + sigma²/2) is the mean.
        service_s = scenario.mean_service_s * draw.lognormvariate(-0.5, 1.0)
        yield Arrival(at_s, digest, prefix, draw.randrange(scenario.num_gateways), service_s)


def churn(scenario: Scenario) -> Iterator[tuple[float, int, bool]]:
    """(when, which replica, whether it is up), by time; never two changes of one at once."""
    if not scenario.churn_s:
        return
    draw = random.Random(scenario.seed + 1)
    changes = []
    at_s, free_at = 0.0, [0.0] * scenario.num_replicas
    while (at_s := at_s + draw.expovariate(1 / scenario.churn_s)) < scenario.duration_s:
        number = draw.randrange(scenario.num_replicas)
        if at_s >= free_at[number]:
            free_at[number] = at_s + scenario.down_s
            changes += [(at_s, number, False), (at_s + scenario.down_s, number, True)]
    yield from sorted(changes)
