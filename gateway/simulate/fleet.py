"""The simulated side: replicas with slots, what they report, and which of them hold what."""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from adapters.rendezvous import Spread, num_wanted, ranked_for, spread
from gateway.router import Snapshot

# As production places: each digest on two replicas at least.
NUM_REPLICAS_PER_ADAPTER = 2


@dataclass
class Replica:
    """slots: digest → None, the least lately used first. running: digest → requests.

    busy_s, up_s: sums over the measured time, for the mean of what runs.
    """

    url: str
    num_slots: int
    is_up: bool = True
    held: set[str] = field(default_factory=set)
    slots: OrderedDict[str, None] = field(default_factory=OrderedDict)
    running: Counter[str] = field(default_factory=Counter)
    num_running: int = 0
    generation: int = 0

    def take(self, digest: str) -> tuple[bool, bool]:
        """(whether its slot was there, whether another had to leave for it)."""
        is_hit = digest in self.slots
        self.slots[digest] = None
        self.slots.move_to_end(digest)
        self.running[digest] += 1
        self.num_running += 1
        is_swap = False
        while len(self.slots) > self.num_slots and (victim := self._victim()) is not None:
            del self.slots[victim]
            is_swap = True
        return is_hit, is_swap

    def _victim(self) -> str | None:
        # What runs is leased: it stays, and the batch waits or the slots are stretched.
        return next((one for one in self.slots if one not in self.running), None)

    def give_back(self, digest: str) -> None:
        self.running[digest] -= 1
        if not self.running[digest]:
            del self.running[digest]
        self.num_running -= 1

    def report(self, all_held: frozenset[str] | None) -> Snapshot:
        """What its /state says. all_held: what each replica holds where there is no placement."""
        digests = frozenset(self.held) if all_held is None else all_held
        on_device, running = frozenset(self.slots), dict(self.running)
        return Snapshot(self.url, self.is_up, digests, self.num_running, 0, on_device, running)

    def die(self) -> None:
        self.is_up = False
        self.generation += 1
        self.num_running = 0
        for part in (self.held, self.slots, self.running):
            part.clear()


class Placement:
    """Which live replicas hold each digest: the same ranking and the same spread as production's
    reconciler, by the requests that replicas report for each digest.
    """

    def __init__(self, digests: list[str], replicas: list[Replica]) -> None:
        self._digests, self._replicas = digests, replicas
        self._spreads: dict[str, Spread] = {}
        self._live: frozenset[str] = frozenset()

    def reconcile(self, now_s: float) -> None:
        live = frozenset(one.url for one in self._replicas if one.is_up)
        changed = self._follow_load(now_s)
        if live != self._live:
            self._live, changed = live, self._digests
        self._place(changed)

    def _follow_load(self, now_s: float) -> list[str]:
        """The digests whose number of replicas changed."""
        load: Counter[str] = Counter()
        for replica in self._replicas:
            load.update(replica.running)
        mean = load.total() / max(1, sum(one.is_up for one in self._replicas))
        changed = []
        for digest in load.keys() | self._spreads.keys():
            before = self._spreads.get(digest, Spread())
            after = spread(before, num_wanted(load[digest], mean), now_s)
            self._spreads[digest] = after
            if after.num_replicas != before.num_replicas:
                changed.append(digest)
        return changed

    def _place(self, digests: list[str]) -> None:
        by_url = {one.url: one for one in self._replicas if one.is_up}
        for digest in digests:
            wanted = self._spreads.get(digest, Spread()).num_replicas
            order = ranked_for(digest, self._live)
            number = max(NUM_REPLICAS_PER_ADAPTER, wanted)
            for url in order[:number]:
                by_url[url].held.add(digest)
            for url in order[number:]:
                by_url[url].held.discard(digest)
                by_url[url].slots.pop(digest, None)
