"""Which adapter is where, and who holds it. Numbers only, no tensors. Under the engine's lock.

Tiers: disk (a path and a digest) → host (pages of its memory) → device (pages and a slot).
Ownership: a request in the engine, waiting or running, holds a claim: the adapter cannot disappear.
A request that was admitted holds a lease: the adapter cannot leave the device. Both are taken and
given back by the scheduler only. Who reads host pages, to copy or to compile them, holds a use of
them. What is unloaded while its pages are read or written keeps them until that is done. An adapter
that lost its last name goes with its last claim, or when it comes to rest.
"""

from collections import Counter
from collections.abc import Iterator

from inference.adapter import Adapter, Placement
from inference.adapter_tiers import DeviceTier, HostTier
from inference.errors import EngineError, ErrorCode

# On their way to the device at once: as many of 84 MB as a prefill step leaves time for.
MAX_COPYING = 16


class AdapterPool:
    """num_pages device pages, num_host_pages in host memory; max_active adapters leased at once.

    copies_ahead: only what is on the device is leased, and place() brings it there in time; False:
    lease() places, and the copy is made before the step that needs it.
    """

    def __init__(
        self, num_pages: int, max_active: int, num_host_pages: int, copies_ahead: bool = False
    ) -> None:
        self.num_pages = num_pages
        self.max_active = max_active
        self.copies_ahead = copies_ahead
        self._host = HostTier(num_host_pages)
        self._device = DeviceTier(num_pages)
        self._adapters: dict[str, Adapter] = {}
        self._digest_by_name: dict[str, str] = {}
        # Pinned, and not on the device yet.
        self._unplaced: dict[str, Adapter] = {}
        self._num_active = 0
        self._clock = 0

    def __iter__(self) -> Iterator[Adapter]:
        return iter(self._adapters.values())

    @property
    def num_active(self) -> int:
        return self._num_active

    @property
    def num_device_loads(self) -> int:
        return self._device.num_loads

    @property
    def num_device_evictions(self) -> int:
        return self._device.evictions.num_by_cause["room"]

    @property
    def num_evictions(self) -> dict[tuple[str, str], int]:
        """By tier and cause: "room" for another, "unload", "failed" copies."""
        tiers: dict[str, Counter[str]] = {
            "device": self._device.evictions.num_by_cause,
            "host": self._host.evictions.num_by_cause,
        }
        return {(tier, cause): num for tier, by in tiers.items() for cause, num in by.items()}

    def find(self, digest: str) -> Adapter | None:
        return self._adapters.get(digest)

    def resolve(self, name: str) -> str | None:
        return self._digest_by_name.get(name)

    def expect(self, adapter: Adapter) -> bool:
        """Enters an adapter that is being loaded and has no name yet, with host pages to read it
        to; False: there is no room for those now. forget() is called once for it.
        """
        assert adapter.digest not in self._adapters, "an adapter is entered once"
        self._adapters[adapter.digest] = adapter
        adapter.is_expected = True
        return self.start_read(adapter)

    def forget(self, adapter: Adapter) -> Adapter | None:
        """What was expected has its names now, or gets none; returns it if it is gone for good."""
        adapter.is_expected = False
        return self._drop_if_unwanted(adapter)

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
        # Also of those still to come: max_active of the largest rank fill the device.
        largest = max(self.num_pages // self.max_active, *(a.num_pages for a in self))
        if pinned + adapter.num_pages + largest > self.num_pages:
            message = f"cannot pin: {pinned} of {self.num_pages} pages are pinned already"
            raise EngineError(ErrorCode.OVERLOADED, message, "pinned")
        adapter.pinned = True
        self._device.settle(adapter)
        if adapter.slot is None:
            self._unplaced[adapter.digest] = adapter

    def unpin(self, adapter: Adapter) -> None:
        """It stays where it is, until its room is wanted."""
        adapter.pinned = False
        self._unplaced.pop(adapter.digest, None)
        self._device.settle(adapter)

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

    def start_step(self) -> None:
        """Another plan is made: tells for how long pages have been nobody's."""
        self._device.step += 1

    def placement(self, digest: str) -> Placement:
        """READY: lease() would succeed now."""
        adapter = self._adapters[digest]
        if adapter.is_copying:
            return Placement.COPYING
        if adapter.slot is None and not adapter.on_host:
            return Placement.NOT_ON_HOST
        if adapter.num_leases == 0 and self._num_active >= self.max_active:
            return Placement.NO_ROOM
        if adapter.slot is not None:
            return Placement.READY
        if not self._device.has_room(adapter.num_pages):
            return Placement.NO_ROOM
        return Placement.ON_HOST if self.copies_ahead else Placement.READY

    def lease(self, digest: str) -> bool:
        """Takes a lease after placement() said READY; True when the pages must be copied first."""
        adapter = self._adapters[digest]
        must_copy = adapter.slot is None
        if must_copy:
            self._place(adapter)
        self._num_active += adapter.num_leases == 0
        adapter.num_leases += 1
        adapter.is_fresh = False
        self._device.settle(adapter)
        self.touch(adapter)
        return must_copy

    def release(self, digest: str) -> None:
        """Gives a lease back; the adapter stays on the device until its pages are wanted."""
        adapter = self._adapters[digest]
        adapter.num_leases -= 1
        self._num_active -= adapter.num_leases == 0
        adapter.last_step = self._device.step
        self._device.settle(adapter)

    def place(self, digest: str, only_unclaimed: bool) -> bool:
        """Gives a waiting adapter pages, so that it can be copied there; False when it cannot be
        now. only_unclaimed: nobody that a waiting request wants leaves the device for it.
        """
        adapter = self._adapters[digest]
        if adapter.slot is not None or not adapter.on_host:
            return False
        if self._device.num_copying >= MAX_COPYING:
            return False
        if not self._device.has_room(adapter.num_pages, only_unclaimed):
            return False
        self._place(adapter, only_unclaimed)
        adapter.is_fresh = True
        return True

    def place_pinned(self) -> list[Adapter]:
        """Puts pinned adapters on the device while there is room; returns those to copy."""
        placed = []
        for adapter in list(self._unplaced.values()):
            if adapter.on_host and self._device.has_room(adapter.num_pages):
                self._place(adapter)
                placed.append(adapter)
        return placed

    def pinned_away(self) -> list[Adapter]:
        """Pinned adapters whose bytes have to come from disk first."""
        return [a for a in self._unplaced.values() if not (a.on_host or a.is_reading)]

    def copied(self, adapter: Adapter) -> Adapter | None:
        """Its copy is done: the host pages may be used again, the device's are its own. Returns it
        if it is gone for good.
        """
        adapter.num_host_uses -= 1
        self._end_copy(adapter)
        return self._drop_if_unwanted(adapter)

    def copy_failed(self, adapter: Adapter) -> Adapter | None:
        """The pages hold nothing; nothing if its copy is done. Only without leases."""
        if not adapter.awaits_copy:
            return None
        assert adapter.num_leases == 0, "forgetting the pages of a leased adapter"
        adapter.num_host_uses -= 1
        self._end_copy(adapter)
        self._device.evictions.count("failed", 0.0)
        self._leave_device(adapter)
        return self._drop_if_unwanted(adapter)

    def start_read(self, adapter: Adapter) -> bool:
        """Gives it host pages to be read to; False when others cannot make room now."""
        assert not (adapter.on_host or adapter.is_reading), "one read at a time"
        adapter.is_reading = self._host.reserve(adapter)
        return adapter.is_reading

    def end_read(self, adapter: Adapter, arrived: bool) -> Adapter | None:
        """Its host pages hold it, or are given back; returns it if it is gone for good."""
        adapter.is_reading = False
        if arrived:
            self._host.arrive(adapter)
            self.touch(adapter)
        else:
            self._host.leave(adapter)
        return self._drop_if_unwanted(adapter)

    def use_host(self, adapter: Adapter) -> None:
        """Somebody reads its host pages until done_with_host()."""
        adapter.num_host_uses += 1

    def done_with_host(self, adapter: Adapter) -> Adapter | None:
        """Returns the adapter if it is gone for good."""
        adapter.num_host_uses -= 1
        return self._drop_if_unwanted(adapter)

    def touch(self, adapter: Adapter) -> None:
        self._clock += 1
        adapter.last_use = self._clock
        adapter.host_floor = self._host.evictions.floor
        adapter.device_floor = self._device.evictions.floor

    def check_integrity(self, claims: dict[str, int], leases: dict[str, int]) -> None:
        """Raises AssertionError unless pages, slots, names and counts agree with the requests."""
        self._host.check_integrity(self)
        self._device.check_integrity(self)
        for adapter in self:
            assert adapter.num_claims == claims.get(adapter.digest, 0), "claims differ"
            assert adapter.num_leases == leases.get(adapter.digest, 0), "leases differ"
            assert not adapter.num_leases or adapter.slot is not None, "leased, not on the device"
            assert not (adapter.num_leases and adapter.is_copying), "leased before its copy is done"
            assert adapter.is_wanted or adapter.is_busy, "an unwanted adapter is kept"
        bound = {name: adapter.digest for adapter in self for name in adapter.names}
        assert bound == self._digest_by_name, "names differ"
        unplaced = {a.digest for a in self if a.pinned and a.slot is None}
        assert unplaced == set(self._unplaced), "pinned adapters differ"
        assert self._num_active == sum(a.num_leases > 0 for a in self) <= self.max_active

    def _place(self, adapter: Adapter, only_unclaimed: bool = False) -> None:
        self._device.place(adapter, only_unclaimed)
        adapter.num_host_uses += 1
        adapter.awaits_copy = True
        if self.copies_ahead:
            adapter.is_copying = True
            self._device.num_copying += 1
        self._unplaced.pop(adapter.digest, None)
        self._device.settle(adapter)

    def _end_copy(self, adapter: Adapter) -> None:
        self._device.num_copying -= adapter.is_copying
        adapter.is_copying = adapter.awaits_copy = False
        self._device.settle(adapter)

    def _leave_device(self, adapter: Adapter) -> None:
        self._device.leave(adapter)
        if adapter.pinned:
            self._unplaced[adapter.digest] = adapter

    def _drop_if_unwanted(self, adapter: Adapter) -> Adapter | None:
        if adapter.is_wanted or adapter.is_busy or adapter.digest not in self._adapters:
            return None
        if adapter.slot is not None:
            self._device.evictions.count("unload", 0.0)
            self._leave_device(adapter)
        if adapter.on_host:
            self._host.evictions.count("unload", 0.0)
            self._host.leave(adapter)
        self._unplaced.pop(adapter.digest, None)
        del self._adapters[adapter.digest]
        return adapter
