"""One adapter to the device, nothing else running: from a compiled file that the page cache does
not have, from one that it has, and from the host's pages.

The engine's own store, with room for one adapter on the device and for one on the host (from the
host: for two), so that two adapters take turns. Timed from the request for the bytes until the host
has seen the end of the copy. What a first load costs, hashing and packing PEFT's files, is a line
beside them.
"""

import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Condition
from typing import Any

import torch

from inference.adapter import Adapter, Placement
from inference.adapter_memory import adapter_store
from inference.adapter_store import AdapterStore
from inference.bench.record import Row, figure
from inference.bench.stage import Stage
from inference.bench.stalls import drop_from_page_cache
from inference.config import EngineConfig
from inference.lora import LoraPool, num_pages_for
from inference.model_spec import ModelSpec
from inference.startup import DTYPES

NUM_LOADS = 12
POLL_S = 0.0001


def measure_loads(stage: Stage) -> Iterator[Row]:
    """Medians over NUM_LOADS, in ms. share_from_disk: bytes that the kernel really fetched from
    storage for them; near 1 or the line is not cold.
    """
    paths, cache = stage.paths(stage.rank, 2), stage.scratch / "compiled-loads"
    # Of another run: the first load would find it done.
    shutil.rmtree(cache, ignore_errors=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = str(stage.config.get("dtype", "auto"))
    lora = _lora(stage.spec, stage.rank, dtype, device)
    for what, num_on_host, is_cold in (
        ("disk cold", 1, True),
        ("page cache", 1, False),
        ("host pool", 2, False),
    ):
        bench = _Bench(stage, lora, cache, num_on_host)
        if what == "disk cold":
            yield bench.first_load(paths)
        else:
            bench.first_load(paths)
        yield bench.row(what, is_cold)
        bench.close()


class _Bench:
    """A store with its two adapters a and b."""

    def __init__(self, stage: Stage, lora: LoraPool, cache: Path, num_on_host: int) -> None:
        num_pages = num_pages_for(stage.rank)
        self._num_bytes = num_pages * lora.layout.page_elements * lora.pages.element_size()
        config = EngineConfig(
            stage.spec.name,
            max_lora_rank=stage.rank,
            host_adapter_bytes=num_on_host * self._num_bytes,
            adapter_cache_dir=str(cache),
        )
        self._rank, self._cache = stage.rank, cache
        self._lock = Condition()
        self._store: AdapterStore = adapter_store(config, stage.spec, lora, self._lock)

    def first_load(self, paths: list[Path]) -> Row:
        """From PEFT's files, which the page cache has: named, hashed, packed, on the host."""
        times_ms = []
        for name, path in zip("ab", paths, strict=True):
            started = time.perf_counter()
            self._store.load(name, str(path), pinned=False)
            times_ms.append((time.perf_counter() - started) * 1e3)
        self._wait_until_compiled()
        return self._figure("first load, PEFT's files to host", times_ms)

    def row(self, what: str, is_cold: bool) -> Row:
        times_ms, num_fetched = [], 0
        for number in range(NUM_LOADS):
            adapter = self._adapter("ab"[number % 2])
            if is_cold:
                drop_from_page_cache(self._cache)
            fetched = _bytes_from_storage()
            started = time.perf_counter()
            self._bring(adapter)
            elapsed_ms = (time.perf_counter() - started) * 1e3
            # The first round warms up: threads start, memory is touched.
            if number >= 2:
                times_ms.append(elapsed_ms)
                num_fetched += _bytes_from_storage() - fetched
        share = num_fetched / (len(times_ms) * self._num_bytes)
        return self._figure(what, times_ms, share_from_disk=round(share, 3))

    def close(self) -> None:
        self._store.close()

    def _figure(self, what: str, times_ms: list[float], **more: Any) -> Row:
        return figure(
            f"adapter load, {what}",
            statistics.median(times_ms),
            "ms",
            max_ms=round(max(times_ms), 3),
            num_bytes=self._num_bytes,
            rank=self._rank,
            **more,
        )

    def _adapter(self, name: str) -> Adapter:
        adapter = self._store.pool.find(self._store.resolve(name))
        assert adapter is not None
        return adapter

    def _wait_until_compiled(self) -> None:
        for name in "ab":
            while not self._adapter(name).is_compiled:
                time.sleep(POLL_S)

    def _bring(self, adapter: Adapter) -> None:
        """As a request does: a claim, the bytes, pages, the copy, its end."""
        pool, digest = self._store.pool, adapter.digest
        with self._lock:
            pool.claim(digest)
            self._store.fetch(digest)
            while pool.placement(digest) is Placement.NOT_ON_HOST:
                if (error := self._store.take_error(digest)) is not None:
                    raise error
                self._lock.wait(POLL_S)
            assert pool.place(digest, only_unclaimed=False), "the other adapter makes room"
            packed = self._store.packed(adapter)
        self._store.mark_launched()
        self._store.start_copies([adapter], [packed])
        with self._lock:
            while self._store.is_copying:
                self._store.settle_copies()
            pool.unclaim(digest)


def _lora(spec: ModelSpec, rank: int, dtype: str, device: torch.device) -> LoraPool:
    default = torch.bfloat16 if device.type == "cuda" else torch.float32
    return LoraPool(spec, num_pages_for(rank), rank, DTYPES.get(dtype, default), device)


def _bytes_from_storage() -> int:
    """What this process caused to be fetched so far (proc(5), read_bytes)."""
    lines = Path("/proc/self/io").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))
