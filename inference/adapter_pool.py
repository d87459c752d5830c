"""Which adapter is where, and who holds it. Numbers only, no tensors.

Tiers: disk (a path and a digest) → host (packed pages in memory) → device (pages and a slot).
Ownership: a request in the engine, waiting or running, holds a claim: the adapter cannot disappear.
A request that was admitted holds a lease: the adapter cannot leave the device. Both are taken and
given back by the scheduler only. An adapter that lost its last name goes with its last claim.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from inference.errors import EngineError, ErrorCode


class Placement(Enum):
    """What stands between an adapter and a lease."""

    READY = "ready"
    NOT_ON_HOST = "not on host"
    NO_ROOM = "no room"


@dataclass
class Adapter:
    """One adapter version. pages: of the device, in rank order; slot: its row in the tables."""

    digest: str
    path: str
    rank: int
    num_pages: int
    num_bytes: int
    names: set[str] = field(default_factory=set)
    pinned: bool = False
    num_claims: int = 0
    num_leases: int = 0
    on_host: bool = False
    slot: int | None = None
    pages: tuple[int, ...] = ()
    last_use: int = 0

    @property
    def tier(self) -> Literal["device", "host", "disk"]:
        if self.slot is not None:
            return "device"
        return "host" if self.on_host else "disk"


class AdapterPool:
    """num_pages device pages of rows_per_page rank rows; max_active adapters leased at once."""

    def __init__(self, num_pages: int, max_active: int, host_bytes: int) -> None:
        self.num_pages = num_pages
        self.max_active = max_active
        self.host_bytes = host_bytes
        self.num_device_loads = 0
        self.num_device_evictions = 0
        self._adapters: dict[str, Adapter] = {}
        self._digest_by_name: dict[str, str] = {}
        self._free_pages = list(range(num_pages))
        self._free_slots = list(range(num_pages))
        # On the device, not leased, not pinned; least recently released first.
        self._idle: OrderedDict[str, Adapter] = OrderedDict()
        self._num_idle_pages = 0
        self._num_active = 0
        self._clock = 0

    def __iter__(self) -> Iterator[Adapter]:
        return iter(self._adapters.values())

    @property
    def num_active(self) -> int:
        return self._num_active

    def find(self, digest: str) -> Adapter | None:
        return self._adapters.get(digest)

    def resolve(self, name: str) -> str | None:
        return self._digest_by_name.get(name)

    def register(self, name: str, adapter: Adapter) -> Adapter:
        """Binds name to this version; the version already known under its digest wins."""
        adapter = self._adapters.setdefault(adapter.digest, adapter)
        adapter.names.add(name)
        self._digest_by_name[name] = adapter.digest
        self.touch(adapter)
        return adapter

    def pin(self, adapter: Adapter) -> None:
        """Refused when what is pinned would leave too little room for the largest adapter."""
        pinned = sum(a.num_pages for a in self if a.pinned and a is not adapter)
        largest = max(a.num_pages for a in self)
        if pinned + adapter.num_pages + largest > self.num_pages:
            message = f"cannot pin: {pinned} of {self.num_pages} pages are pinned already"
            raise EngineError(ErrorCode.OVERLOADED, message, "pinned")
        self._leave_idle(adapter)
        adapter.pinned = True

    def unbind(self, name: str) -> Adapter | None:
        """Takes the name away at once; returns the adapter if it is gone for good."""
        adapter = self._adapters[self._digest_by_name.pop(name)]
        adapter.names.discard(name)
        return self._drop_if_unwanted(adapter)

    def claim(self, digest: str) -> None:
        self._adapters[digest].num_claims += 1

    def unclaim(self, digest: str) -> Adapter | None:
        """Gives a claim back; returns the adapter if it is gone for good."""
        adapter = self._adapters[digest]
        adapter.num_claims -= 1
        return self._drop_if_unwanted(adapter)

    def placement(self, digest: str) -> Placement:
        """Whether lease() would succeed now."""
        adapter = self._adapters[digest]
        if adapter.slot is None and not adapter.on_host:
            return Placement.NOT_ON_HOST
        if adapter.num_leases == 0 and self._num_active >= self.max_active:
            return Placement.NO_ROOM
        has_room = adapter.slot is not None or self._has_room(adapter)
        return Placement.READY if has_room else Placement.NO_ROOM

    def lease(self, digest: str) -> bool:
        """Takes a lease after placement() said READY; True when the pages must be copied first."""
        adapter = self._adapters[digest]
        must_copy = adapter.slot is None
        if must_copy:
            self._place(adapter)
        self._leave_idle(adapter)
        self._num_active += adapter.num_leases == 0
        adapter.num_leases += 1
        self.touch(adapter)
        return must_copy

    def release(self, digest: str) -> None:
        """Gives a lease back; the adapter stays on the device until its pages are wanted."""
        adapter = self._adapters[digest]
        adapter.num_leases -= 1
        if adapter.num_leases == 0:
            self._num_active -= 1
            self._enter_idle(adapter)

    def place_pinned(self) -> list[Adapter]:
        """Puts pinned adapters on the device while there is room; returns those to copy."""
        waiting = [a for a in self if a.pinned and a.on_host and a.slot is None]
        placed = []
        for adapter in waiting:
            if self._has_room(adapter):
                self._place(adapter)
                placed.append(adapter)
        return placed

    def forget_pages(self, adapter: Adapter) -> None:
        """The copy to the device failed: the pages hold nothing. Only without leases."""
        assert adapter.num_leases == 0, "forgetting the pages of a leased adapter"
        self._leave_device(adapter)

    def put_on_host(self, digest: str) -> list[str]:
        """Marks the adapter as held in host memory; returns the digests to drop from there."""
        adapter = self._adapters[digest]
        adapter.on_host = True
        self.touch(adapter)
        total = sum(a.num_bytes for a in self if a.on_host)
        dropped = []
        for other in sorted(self, key=lambda a: a.last_use):
            if total <= self.host_bytes:
                break
            if other.on_host and not (other.num_claims or other.pinned or other is adapter):
                other.on_host = False
                total -= other.num_bytes
                dropped.append(other.digest)
        return dropped

    def touch(self, adapter: Adapter) -> None:
        self._clock += 1
        adapter.last_use = self._clock

    def check_integrity(self, claims: dict[str, int], leases: dict[str, int]) -> None:
        """Raises AssertionError unless pages, slots, names and counts agree with the requests."""
        pages = sorted(p for adapter in self for p in adapter.pages) + sorted(self._free_pages)
        assert sorted(pages) == list(range(self.num_pages)), "a page is lost or owned twice"
        slots = [a.slot for a in self if a.slot is not None] + self._free_slots
        assert sorted(slots) == list(range(self.num_pages)), "a slot is lost or owned twice"
        for adapter in self:
            placed = 0 if adapter.slot is None else adapter.num_pages
            assert len(adapter.pages) == placed, "pages without a slot"
            assert adapter.num_claims == claims.get(adapter.digest, 0), "claims differ"
            assert adapter.num_leases == leases.get(adapter.digest, 0), "leases differ"
            assert not adapter.num_leases or placed, "a leased adapter is not on the device"
            assert adapter.names or adapter.num_claims, "an unwanted adapter is kept"
        bound = {name: adapter.digest for adapter in self for name in adapter.names}
        assert bound == self._digest_by_name, "names differ"
        idle = {a.digest for a in self if a.slot is not None and not (a.num_leases or a.pinned)}
        assert idle == set(self._idle), "idle adapters differ"
        assert self._num_idle_pages == sum(a.num_pages for a in self._idle.values())
        assert self._num_active == sum(a.num_leases > 0 for a in self) <= self.max_active

    def _place(self, adapter: Adapter) -> None:
        while len(self._free_pages) < adapter.num_pages:
            self._leave_device(next(iter(self._idle.values())))
            self.num_device_evictions += 1
        adapter.pages = tuple(self._free_pages[: adapter.num_pages])
        del self._free_pages[: adapter.num_pages]
        adapter.slot = self._free_slots.pop()
        self.num_device_loads += 1

    def _has_room(self, adapter: Adapter) -> bool:
        return adapter.num_pages <= len(self._free_pages) + self._num_idle_pages

    def _enter_idle(self, adapter: Adapter) -> None:
        if adapter.slot is not None and not adapter.pinned:
            self._idle[adapter.digest] = adapter
            self._num_idle_pages += adapter.num_pages

    def _leave_idle(self, adapter: Adapter) -> None:
        if self._idle.pop(adapter.digest, None) is not None:
            self._num_idle_pages -= adapter.num_pages

    def _leave_device(self, adapter: Adapter) -> None:
        if adapter.slot is None:
            return
        self._leave_idle(adapter)
        self._free_pages.extend(adapter.pages)
        self._free_slots.append(adapter.slot)
        adapter.slot, adapter.pages = None, ()

    def _drop_if_unwanted(self, adapter: Adapter) -> Adapter | None:
        if adapter.names or adapter.num_claims:
            return None
        self._leave_device(adapter)
        del self._adapters[adapter.digest]
        return adapter
