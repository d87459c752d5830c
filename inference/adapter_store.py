"""Adapters by name: loading, naming, unloading, and their way from disk to the host and the device.

Any thread may call; what is shared is guarded by the engine's lock, and no file is read under it.
Copies to the device are the loop's: it starts them and hears of their end, and waits for none.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Condition

from inference.adapter import Adapter
from inference.adapter_copies import AdapterCopies
from inference.adapter_loader import AdapterLoader
from inference.adapter_pool import AdapterPool
from inference.adapter_reads import AdapterReads
from inference.errors import EngineError, ErrorCode
from inference.host_pages import HostPages
from inference.lora import PackedAdapter
from inference.request import AdapterInfo
from inference.stats import LoadTimes


@dataclass
class FirstLoad:
    """An adapter that load() brings in for the first time; callers of the same bytes share it."""

    adapter: "Future[Adapter]"
    num_callers: int = 0


class AdapterStore:
    """lock: the engine's, notified when an adapter has arrived."""

    def __init__(
        self,
        pool: AdapterPool,
        loader: AdapterLoader,
        host: HostPages,
        copies: AdapterCopies,
        lock: Condition,
    ) -> None:
        self.pool = pool
        self.times = LoadTimes()
        self._loader, self._host, self._copies, self._lock = loader, host, copies, lock
        self._reads = AdapterReads(pool, loader, host, self.times, lock)
        self._first_loads: dict[str, FirstLoad] = {}
        self._copying: dict[str, Adapter] = {}

    @property
    def is_copying(self) -> bool:
        """Whether an adapter is on its way to the device."""
        return bool(self._copying)

    def load(self, name: str, path: str, pinned: bool) -> AdapterInfo:
        """Reads, verifies and names an adapter; on the host when it returns, where there is room.

        The same name and bytes again is a success. Raises EngineError ADAPTER_CONFLICT,
        INVALID_ADAPTER with every problem, or OVERLOADED when there is no room to pin. Whether it
        is pinned is what the last load of its bytes said.
        """
        digest = self._loader.digest_of(path)
        with self._lock:
            self._check_name(name, digest)
            known = self.pool.find(digest)
            if known is not None and digest not in self._first_loads:
                # These files were just seen to have its bytes.
                known.path = path
                if known.slot is None:
                    self._reads.start_fetch(known)
                return _info(name, self._bind(name, known, pinned))
            first = self._join(digest, path)
        try:
            adapter = first.adapter.result()
            with self._lock:
                self._check_name(name, digest)
                return _info(name, self._bind(name, adapter, pinned))
        finally:
            with self._lock:
                self._leave(first, digest)

    def unload(self, name: str) -> None:
        """New requests are refused at once; weights go with the last request. MODEL_NOT_FOUND."""
        with self._lock:
            self.resolve(name)
            self.drop(self.pool.unbind(name))

    def resolve(self, name: str) -> str:
        with self._lock:
            digest = self.pool.resolve(name)
        if digest is None:
            raise EngineError(ErrorCode.MODEL_NOT_FOUND, f"no adapter {name!r} is loaded", "model")
        return digest

    def infos(self) -> tuple[AdapterInfo, ...]:
        with self._lock:
            return tuple(
                _info(name, adapter) for adapter in self.pool for name in sorted(adapter.names)
            )

    def drop(self, adapter: Adapter | None) -> None:
        """Forgets what is known of an adapter that left the pool; under the lock."""
        self._reads.drop(adapter)

    def fetch(self, digest: str) -> bool:
        """Starts to bring the adapter from disk to the host, if a reader is free; under the lock,
        does not wait. False when there is no room for it on the host yet.
        """
        adapter = self.pool.find(digest)
        assert adapter is not None, "a claimed adapter is in the pool"
        return self._reads.start_fetch(adapter)

    def fetch_pinned(self) -> None:
        """As fetch, for those that are to be on the device and are not even on the host."""
        for adapter in self.pool.pinned_away():
            if adapter.digest not in self._reads.errors:
                self._reads.start_fetch(adapter)

    def take_error(self, digest: str) -> EngineError | None:
        """Why the last fetch of this adapter failed, once; under the lock."""
        return self._reads.errors.pop(digest, None)

    def packed(self, adapter: Adapter) -> PackedAdapter:
        """The host copy, for start_copies; under the lock, while the pool holds a use of it."""
        contents = self._reads.contents[adapter.digest]
        spans = self._host.spans(adapter.host_pages)
        return PackedAdapter(adapter.digest, adapter.rank, spans, contents.scales, contents.groups)

    def mark_launched(self) -> None:
        """Before the forward of a plan with copies is launched, which those need not wait for; the
        loop's thread, where the current stream is the one of forwards.
        """
        self._copies.mark()

    def start_copies(self, adapters: Sequence[Adapter], packed: Sequence[PackedAdapter]) -> None:
        """Starts their copies to the pages that the pool gave; the loop's thread, without the lock,
        after mark_launched().
        """
        for adapter, weights in zip(adapters, packed, strict=True):
            self._copies.start(adapter, weights)
            self._copying[adapter.digest] = adapter
        if adapters:
            with self._lock:
                # On the CPU they are done.
                self.settle_copies()

    def settle_copies(self) -> None:
        """Takes in what has arrived on the device; the loop's thread, under the lock."""
        for copied in self._copies.finished():
            self.times.count("host", "device", copied.seconds)
            self.drop(self.pool.copied(self._copying.pop(copied.digest)))

    def give_up_copy(self, adapter: Adapter) -> None:
        """Whoever should have started it failed; under the lock, only without leases."""
        if adapter.digest not in self._copying:
            self.drop(self.pool.copy_failed(adapter))

    def evictions(self) -> dict[tuple[str, str], int]:
        """By tier and cause; under the lock."""
        found = self.pool.num_evictions
        if self._loader.folder is not None:
            found["compiled", "room"] = self._loader.folder.num_evictions
        return found

    def close(self) -> None:
        self._reads.close()

    def _check_name(self, name: str, digest: str) -> None:
        bound = self.pool.resolve(name)
        if bound is not None and bound != digest:
            message = f"{name!r} is loaded with digest {bound}; the files have {digest}"
            raise EngineError(ErrorCode.ADAPTER_CONFLICT, message, "lora_name")

    def _bind(self, name: str, adapter: Adapter, pinned: bool) -> Adapter:
        was_named = name in adapter.names
        adapter = self.pool.register(name, adapter)
        try:
            if pinned and not adapter.pinned:
                self.pool.pin(adapter)
            elif adapter.pinned and not pinned:
                self.pool.unpin(adapter)
        except EngineError:
            if not was_named:
                self.drop(self.pool.unbind(name))
            raise
        return adapter

    def _join(self, digest: str, path: str) -> FirstLoad:
        """One reading of these bytes, however many callers it has."""
        first = self._first_loads.get(digest)
        if first is None:
            first = FirstLoad(self._reads.start_first(digest, path))
            self._first_loads[digest] = first
        first.num_callers += 1
        return first

    def _leave(self, first: FirstLoad, digest: str) -> None:
        """The last caller ends it: what got no name goes."""
        first.num_callers -= 1
        if first.num_callers:
            return
        del self._first_loads[digest]
        adapter = self.pool.find(digest)
        if adapter is not None and adapter.is_expected:
            self.drop(self.pool.forget(adapter))


def _info(name: str, adapter: Adapter) -> AdapterInfo:
    return AdapterInfo(
        name,
        adapter.digest,
        adapter.rank,
        adapter.tier,
        adapter.num_leases,
        adapter.pinned,
        is_moving=adapter.is_reading or adapter.is_copying,
    )
