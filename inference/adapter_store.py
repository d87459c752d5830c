"""Adapters by name: loading, naming, unloading, and the host tier that holds their packed bytes.

Any thread may call; what is shared is guarded by the engine's lock, and no file is read under it.
"""

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition

from inference.adapter_loader import AdapterLoader
from inference.adapter_pool import Adapter, AdapterPool
from inference.errors import EngineError, ErrorCode
from inference.lora import PackedAdapter
from inference.request import AdapterInfo

logger = logging.getLogger(__name__)

NUM_READERS = 2


class AdapterStore:
    """lock: the engine's, notified when an adapter has arrived."""

    def __init__(self, pool: AdapterPool, loader: AdapterLoader, lock: Condition) -> None:
        self.pool = pool
        self._loader = loader
        self._lock = lock
        self._packed: dict[str, PackedAdapter] = {}
        self._reads: dict[str, Future[PackedAdapter]] = {}
        self._errors: dict[str, EngineError] = {}
        self._readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="adapter-reader")

    def load(self, name: str, path: str, pinned: bool) -> AdapterInfo:
        """Reads, verifies and names an adapter; on the host when it returns.

        The same name and bytes again is a success. Raises EngineError ADAPTER_CONFLICT,
        INVALID_ADAPTER with every problem, or OVERLOADED when there is no room to pin.
        """
        digest = self._loader.digest_of(path)
        with self._lock:
            self._check_name(name, digest)
            known = self.pool.find(digest)
            if known is not None:
                return _info(name, self._bind(name, known, pinned))
            read = self._read(digest, path)
        packed = read.result()
        with self._lock:
            self._check_name(name, digest)
            rank, num_pages = packed.rank, packed.pages.shape[0]
            fresh = Adapter(digest, path, rank, num_pages, packed.num_bytes)
            adapter = self._bind(name, fresh, pinned)
            self._hold(digest, packed)
            return _info(name, adapter)

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

    def packed(self, adapter: Adapter) -> PackedAdapter:
        """The host copy; only while the adapter is on the host."""
        return self._packed[adapter.digest]

    def drop(self, adapter: Adapter | None) -> None:
        """Forgets the bytes of an adapter that left the pool."""
        if adapter is not None:
            self._packed.pop(adapter.digest, None)

    def fetch(self, digest: str) -> None:
        """Starts to bring the adapter from disk to the host; under the lock, does not wait."""
        adapter = self.pool.find(digest)
        assert adapter is not None, "a claimed adapter is in the pool"
        self._read(digest, adapter.path)

    def take_error(self, digest: str) -> EngineError | None:
        """Why the last fetch of this adapter failed, once; under the lock."""
        return self._errors.pop(digest, None)

    def close(self) -> None:
        self._readers.shutdown(wait=True, cancel_futures=True)

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
        except EngineError:
            if not was_named:
                self.drop(self.pool.unbind(name))
            raise
        return adapter

    def _read(self, digest: str, path: str) -> Future[PackedAdapter]:
        """One read at a time for a digest, whoever asks."""
        read = self._reads.get(digest)
        if read is None:
            read = self._readers.submit(self._loader.load, path, digest)
            self._reads[digest] = read
            self._errors.pop(digest, None)
            read.add_done_callback(lambda done: self._arrived(digest, done))
        return read

    def _arrived(self, digest: str, read: Future[PackedAdapter]) -> None:
        with self._lock:
            self._reads.pop(digest, None)
            if read.cancelled():
                return
            error = read.exception()
            if self.pool.find(digest) is None:
                return
            if error is None:
                self._hold(digest, read.result())
            elif isinstance(error, EngineError):
                self._errors[digest] = error
            else:
                logger.error("adapter %s cannot be read", digest, exc_info=error)
                self._errors[digest] = EngineError(ErrorCode.INTERNAL, "the adapter cannot be read")
            self._lock.notify_all()

    def _hold(self, digest: str, packed: PackedAdapter) -> None:
        self._packed[digest] = packed
        for dropped in self.pool.put_on_host(digest):
            del self._packed[dropped]


def _info(name: str, adapter: Adapter) -> AdapterInfo:
    leases, pinned = adapter.num_leases, adapter.pinned
    return AdapterInfo(name, adapter.digest, adapter.rank, adapter.tier, leases, pinned)
