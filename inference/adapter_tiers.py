"""The pages of the host and of the device, and who leaves them for another.

Eviction is GreedyDual (Young 1994; with sizes, Cao and Irani 1997): LRU weighted by what coming
back would cost. An adapter's credit is the tier's floor when it was last used and the cost of a
page of it; the lowest credit leaves, and the floor rises to it. So with equal costs it is LRU, and
what costs k times as much outlives k rounds of the others. Cost and room both grow with an
adapter's bytes: by the page, only where they would come from counts.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from inference.adapter import Adapter
from inference.page_set import PageSet

# Of bringing a page back: from the host, from a compiled file, from PEFT's files. Near the ratios
# of their times for 84 MB on an H200 machine.
COPY_COST = 1.0
READ_COST = 8.0
PACK_COST = 32.0

# Steps after which what was launched before has ended. The loop takes a step's tokens in before it
# launches the one after the next: two would do.
QUIET_STEPS = 3


class Evictions:
    """The floor of a tier, and how many left it by cause."""

    def __init__(self) -> None:
        self.floor = 0.0
        self.num_by_cause: Counter[str] = Counter()

    def victims(
        self, adapters: Iterable[Adapter], num_pages: int, credit: Callable[[Adapter], float]
    ) -> list[Adapter]:
        """The lowest credits that have num_pages together; all where that is not enough."""
        found, num_found = [], 0
        for adapter in sorted(adapters, key=lambda a: (credit(a), a.last_use)):
            if num_found >= num_pages:
                break
            found.append(adapter)
            num_found += adapter.num_pages
        return found

    def count(self, cause: str, credit: float) -> None:
        self.num_by_cause[cause] += 1
        self.floor = max(self.floor, credit)


class HostTier:
    """num_pages of host memory. An adapter in use stays, and one on its way to the device."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.evictions = Evictions()
        self._free = PageSet(num_pages)
        self._held: dict[str, Adapter] = {}

    def reserve(self, adapter: Adapter) -> bool:
        """Gives it pages to be read to; False when others cannot make room now."""
        missing = adapter.num_pages - self._free.num_free
        if missing > 0:
            leaving = [a for a in self._held.values() if not (a.is_busy or a.is_on_its_way)]
            victims = self.evictions.victims(leaving, missing, _host_credit)
            if sum(victim.num_pages for victim in victims) < missing:
                return False
            for victim in victims:
                self.evictions.count("room", _host_credit(victim))
                self.leave(victim)
        adapter.host_pages = self._free.take(adapter.num_pages)
        return True

    def arrive(self, adapter: Adapter) -> None:
        """Its reserved pages hold it now."""
        adapter.on_host = True
        self._held[adapter.digest] = adapter

    def leave(self, adapter: Adapter) -> None:
        """Its pages, held or reserved, are free again."""
        self._held.pop(adapter.digest, None)
        self._free.give_back(adapter.host_pages)
        adapter.on_host, adapter.host_pages = False, ()

    def check_integrity(self, adapters: Iterable[Adapter]) -> None:
        adapters = list(adapters)
        taken = [page for adapter in adapters for page in adapter.host_pages]
        self._free.check_integrity(taken, self.num_pages)
        assert {a.digest for a in adapters if a.on_host} == set(self._held), "host tier differs"
        for adapter in adapters:
            expected = adapter.num_pages if adapter.on_host or adapter.is_reading else 0
            assert len(adapter.host_pages) == expected, "host pages without their adapter"
            assert not adapter.num_host_uses or adapter.on_host, "a use of what is not there"


class DeviceTier:
    """num_pages of the device, and as many slots. An adapter that is leased, pinned or being copied
    stays.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.num_loads = 0
        self.num_copying = 0
        # Counts plans; 0: before the first.
        self.step = 0
        # When a former owner of the page, or of the slot, gave back its last lease.
        self._page_steps = [-QUIET_STEPS] * num_pages
        self._slot_steps = [-QUIET_STEPS] * num_pages
        self.evictions = Evictions()
        self._free = PageSet(num_pages)
        self._free_slots = list(range(num_pages))
        self._idle: dict[str, Adapter] = {}
        self._num_idle_pages = 0

    def has_room(self, num_pages: int, only_unclaimed: bool = False) -> bool:
        """only_unclaimed: without those that a waiting request wants."""
        num_idle = self._num_idle_pages
        if only_unclaimed and num_pages > self._free.num_free:
            num_idle = sum(a.num_pages for a in self._idle.values() if not a.num_claims)
        return num_pages <= self._free.num_free + num_idle

    def place(self, adapter: Adapter, only_unclaimed: bool = False) -> None:
        """Gives it pages and a slot; after has_room() said so."""
        missing = adapter.num_pages - self._free.num_free
        if missing > 0:
            idle = (a for a in self._idle.values() if not (only_unclaimed and a.num_claims))
            for victim in self.evictions.victims(idle, missing, _device_credit):
                self.evictions.count("room", _device_credit(victim))
                self.leave(victim)
        adapter.pages = self._free.take(adapter.num_pages)
        adapter.slot = self._free_slots.pop()
        last = max(self._slot_steps[adapter.slot], *(self._page_steps[p] for p in adapter.pages))
        adapter.is_quiet = self.step - last >= QUIET_STEPS
        adapter.last_step = last
        self.num_loads += 1

    def settle(self, adapter: Adapter) -> None:
        """Its leases, pin, place or copy have changed: whether it may be evicted."""
        held = adapter.num_leases or adapter.pinned or adapter.is_copying
        was_idle = adapter.digest in self._idle
        is_idle = adapter.slot is not None and not held
        if is_idle and not was_idle:
            self._idle[adapter.digest] = adapter
        elif was_idle and not is_idle:
            del self._idle[adapter.digest]
        self._num_idle_pages += (is_idle - was_idle) * adapter.num_pages

    def leave(self, adapter: Adapter) -> None:
        self._free.give_back(adapter.pages)
        for page in adapter.pages:
            self._page_steps[page] = adapter.last_step
        if adapter.slot is not None:
            # To the other end: the one that has been free for longest is taken next.
            self._free_slots.insert(0, adapter.slot)
            self._slot_steps[adapter.slot] = adapter.last_step
        adapter.slot, adapter.pages, adapter.is_fresh = None, (), False
        self.settle(adapter)

    def check_integrity(self, adapters: Iterable[Adapter]) -> None:
        adapters = list(adapters)
        taken = [page for adapter in adapters for page in adapter.pages]
        self._free.check_integrity(taken, self.num_pages)
        slots = [a.slot for a in adapters if a.slot is not None] + self._free_slots
        assert sorted(slots) == list(range(self.num_pages)), "a slot is lost or owned twice"
        assert self.num_copying == sum(a.is_copying for a in adapters), "copies differ"
        idle = {a.digest for a in adapters if _is_idle(a)}
        assert idle == set(self._idle), "idle adapters differ"
        assert self._num_idle_pages == sum(a.num_pages for a in self._idle.values())
        for adapter in adapters:
            placed = 0 if adapter.slot is None else adapter.num_pages
            assert len(adapter.pages) == placed, "pages without a slot"
            assert placed or not adapter.is_copying, "a copy to nowhere"


def _is_idle(adapter: Adapter) -> bool:
    held = adapter.num_leases or adapter.pinned or adapter.is_copying
    return adapter.slot is not None and not held


def _host_credit(adapter: Adapter) -> float:
    return adapter.host_floor + (READ_COST if adapter.is_compiled else PACK_COST)


def _device_credit(adapter: Adapter) -> float:
    if adapter.on_host:
        return adapter.device_floor + COPY_COST
    return adapter.device_floor + (READ_COST if adapter.is_compiled else PACK_COST)
