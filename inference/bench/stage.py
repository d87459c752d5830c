"""What the measurements on one device share: engines, adapters, the time that is left.

Engines start when first asked for and stay: what differs between two rows is their requests. "many"
has places for 256 adapters, "few" for 8; the times they take to start are lines of their own.
"""

import gc
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from inference.bench.dummy_adapter import write_dummy_adapters
from inference.bench.record import Row
from inference.bench.shapes import write_model
from inference.bench.traffic import Traffic
from inference.config import EngineConfig
from inference.engine import Engine
from inference.lora import num_pages_for
from inference.model_spec import ModelSpec
from inference.startup import num_places

# Distinct adapters that fit on the device, of the rank that is asked for.
PLACES = {"many": 256, "few": 8}
NUM_LOADERS = 8
# For 256 adapters of 84 MB, and for 70.
HOST_BYTES = {"many": 24 << 30, "few": 6 << 30}
# Of compiled adapters on the disk.
CACHE_BYTES = 12 << 30


@dataclass
class Stage:
    """max_requests: that run at once in any measurement. scratch: a folder on a disk, for files.
    until_s: of time.monotonic(). config: fields of the engines' EngineConfig.
    """

    spec: ModelSpec
    scratch: Path
    max_requests: int = 256
    prompt_tokens: int = 256
    output_tokens: int = 256
    rank: int = 16
    repeats: int = 1
    until_s: float = math.inf
    shape: str | None = None
    model_path: str | None = None
    places: dict[str, int] = field(default_factory=lambda: dict(PLACES))
    config: dict[str, Any] = field(default_factory=dict)
    _setup: list[Row] = field(default_factory=list)
    _engines: dict[str, Engine] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        return self.until_s - time.monotonic()

    def engine(self, name: str) -> Engine:
        if name not in self._engines:
            started = time.perf_counter()
            self._engines[name] = Engine(self._config(name), self.spec)
            self._took(f"engine start, {self.places[name]} places", started)
        return self._engines[name]

    def traffic(self, name: str) -> Traffic:
        return Traffic(self.engine(name), self.prompt_tokens, self.output_tokens)

    def paths(self, rank: int, count: int, targets: Sequence[str] = ()) -> list[Path]:
        """Adapter folders, written once. targets: names of projections, none for all."""
        folder = self.scratch / "-".join(["adapters", f"r{rank}", *targets])
        return write_dummy_adapters(folder, self.spec, rank, count, targets)

    def adapters(self, name: str, rank: int, count: int, targets: Sequence[str] = ()) -> list[str]:
        """Names of count adapters of this rank in the engine of that name, loaded if need be."""
        engine = self.engine(name)
        paths = {f"r{rank}-{path.name}": path for path in self.paths(rank, count, targets)}
        known = {info.name for info in engine.state().adapters}
        wanted = [one for one in paths if one not in known]
        started = time.perf_counter()
        with ThreadPoolExecutor(NUM_LOADERS) as pool:
            list(pool.map(lambda one: engine.load_adapter(one, str(paths[one])), wanted))
        if wanted:
            self._took(f"loading {len(wanted)} adapters of rank {rank}", started)
        return list(paths)

    def num_fitting(self, name: str, rank: int) -> int:
        """Adapters of this rank that the engine of that name holds on its device."""
        engine = self.engine(name)
        places = num_places(engine.config, engine.device)
        return places * num_pages_for(self.rank) // num_pages_for(rank)

    def unload(self, name: str, adapters: list[str]) -> None:
        for one in adapters:
            self.engine(name).unload_adapter(one)

    @property
    def compiled(self) -> Path:
        """Where "few" keeps compiled adapters."""
        return self.scratch / "compiled-few"

    def model_folder(self) -> Path:
        """A folder of the model for a server; of a shape, without weights."""
        if self.shape is None:
            assert self.model_path is not None
            return Path(self.model_path)
        return write_model(self.scratch / "model", self.shape)

    def take_setup(self) -> Iterator[Row]:
        """Lines on what was made since the last call."""
        yield from self._setup
        self._setup.clear()

    def close(self) -> None:
        """Gives the device's memory back, for a server beside."""
        self._engines.clear()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _took(self, what: str, started: float) -> None:
        seconds = round(time.perf_counter() - started, 2)
        self._setup.append({"table": "setup", "what": what, "value": seconds, "unit": "s"})

    def _config(self, name: str) -> EngineConfig:
        values: dict[str, Any] = {
            "load_format": "dummy",
            "max_loras_per_batch": self.places[name],
            "max_lora_rank": self.rank,
            "max_model_len": self.prompt_tokens + self.output_tokens + 1,
            "max_num_seqs": self.max_requests,
            "prefix_cache": False,
            "host_adapter_bytes": HOST_BYTES[name],
        }
        if name == "few":
            # The crowd of "many" would fill a disk.
            values |= {"adapter_cache_dir": str(self.compiled), "adapter_cache_bytes": CACHE_BYTES}
        return EngineConfig(self.model_path or self.spec.name, **values | self.config)
