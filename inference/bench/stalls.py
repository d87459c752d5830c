"""Steps of requests that run while other tenants' adapters are loaded beside them.

Streams over a few adapters fill the batch. Every INTERVAL_S a probe comes, one token long: for an
adapter on the device; for one that is on the host only; for one that is first loaded by name from
its compiled file, which the page cache does not have; for one that nobody has seen, which is packed
and compiled from PEFT's files. The probes' rows are the same, so what differs is the loading. It
goes on in the engine's process, by the calls that a server makes.
"""

import contextlib
import itertools
import os
import queue
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from inference.bench.record import Row, figure
from inference.bench.stage import Stage
from inference.bench.traffic import Sent, Traffic, steady_steps_ms

INTERVAL_S = 0.1
NUM_ROUNDS = 2
STREAM_PROMPT_TOKENS = 16
KINDS = ("device", "host", "disk", "new")
# Folders for the loads of one kind and round.
NUM_FRESH = 40


def measure_stalls(stage: Stage) -> Iterator[Row]:
    """Step time with loads from the host and from disk, over without. A quarter of the requests
    that may run are streams: the probes have rows of their own.
    """
    num_streams = max(1, stage.max_requests // 4)
    places = stage.places["few"]
    names = stage.adapters("few", stage.rank, 3 * places)
    known = stage.paths(stage.rank, 5 * places)[3 * places :]
    _compile(stage, known)
    fresh = iter(stage.paths(stage.rank, 5 * places + NUM_ROUNDS * NUM_FRESH)[5 * places :])
    yield from stage.take_setup()
    steps: dict[str, list[float]] = {kind: [] for kind in KINDS}
    loads = dict.fromkeys(KINDS, 0)
    for number in range(NUM_ROUNDS):
        if number and stage.left_s <= 0:
            break
        for kind, probes in _probes(stage, names, known, fresh).items():
            with probes:
                found, num_loads = _run(stage, names[: places // 2], num_streams, probes)
            steps[kind] += found
            loads[kind] += num_loads
    for kind in KINDS[1:]:
        yield _row(stage, kind, steps, loads[kind])


def _probes(
    stage: Stage, names: list[str], known: list[Path], fresh: Iterator[Path]
) -> dict[str, "Probes"]:
    """Of one round, by kind."""
    on_device = stage.places["few"] // 2
    return {
        "device": Probes(names[:on_device]),
        "host": Probes(names[on_device:]),
        "disk": FreshProbes(stage, itertools.cycle(known), is_cold=True),
        "new": FreshProbes(stage, itertools.islice(fresh, NUM_FRESH), is_cold=False),
    }


def _compile(stage: Stage, paths: list[Path]) -> None:
    """Each is loaded once: that leaves a compiled file, which the next load reads."""
    engine = stage.engine("few")
    for number, path in enumerate(paths):
        engine.load_adapter(f"known-{number}", str(path))
        engine.unload_adapter(f"known-{number}")


class Probes:
    """Adapters to ask for, one every INTERVAL_S."""

    def __init__(self, names: list[str]) -> None:
        self._names = itertools.cycle(names)
        self._next_s = time.perf_counter() + INTERVAL_S

    def __enter__(self) -> "Probes":
        return self

    def __exit__(self, *_: object) -> None:
        return

    def due(self) -> str | None:
        """The adapter of a probe to send now."""
        now_s = time.perf_counter()
        if now_s < self._next_s:
            return None
        self._next_s = max(self._next_s + INTERVAL_S, now_s)
        return next(self._names)

    def answered(self, name: str) -> None:
        """Its probe has its token."""


class FreshProbes(Probes):
    """Each adapter is loaded by name before its probe, and unloaded after it, while paths last.

    is_cold: of its files, the page cache has nothing.
    """

    def __init__(self, stage: Stage, paths: Iterator[Path], is_cold: bool) -> None:
        super().__init__([])
        self._engine = stage.engine("few")
        self._folders = [stage.compiled] if is_cold else []
        self._paths = paths
        self._loaded: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._answered: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._load, name="bench-loads")

    def __enter__(self) -> "Probes":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._unload_answered()
        while not self._loaded.empty():
            self._engine.unload_adapter(self._loaded.get())

    def due(self) -> str | None:
        return None if self._loaded.empty() else self._loaded.get()

    def answered(self, name: str) -> None:
        self._answered.put(name)

    def _load(self) -> None:
        for number, path in enumerate(self._paths):
            if self._is_over.wait(INTERVAL_S):
                return
            self._unload_answered()
            name = f"fresh-{number}"
            for folder in self._folders:
                drop_from_page_cache(folder)
            self._engine.load_adapter(name, str(path))
            self._loaded.put(name)

    def _unload_answered(self) -> None:
        while not self._answered.empty():
            self._engine.unload_adapter(self._answered.get())


def drop_from_page_cache(folder: Path) -> None:
    """The next read of its files is the disk's (not on a file system in memory)."""
    for path in folder.iterdir():
        # A file that is being written is renamed when it is whole.
        with contextlib.suppress(FileNotFoundError):
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def _run(
    stage: Stage, names: list[str], num_streams: int, probes: Probes
) -> tuple[list[float], int]:
    """Steps of the streams in ms, and how many adapters were copied to the device meanwhile."""
    output_tokens = stage.prompt_tokens + stage.output_tokens - STREAM_PROMPT_TOKENS
    traffic = Traffic(stage.engine("few"), STREAM_PROMPT_TOKENS, output_tokens)
    sent = [traffic.send(names[i % len(names)]) for i in range(num_streams)]
    traffic.step()
    loads_before = traffic.engine.stats().num_adapter_loads
    asked: dict[str, Sent] = {}
    while any(len(one.token_s) < output_tokens for one in sent):
        name = probes.due()
        if name is not None:
            asked[name] = traffic.send(name, prompt_tokens=1, output_tokens=1)
        traffic.step()
        for name in [name for name, one in asked.items() if one.token_s]:
            del asked[name]
            probes.answered(name)
    traffic.drain()
    for name in asked:
        probes.answered(name)
    return steady_steps_ms(sent), traffic.engine.stats().num_adapter_loads - loads_before


def _row(stage: Stage, kind: str, steps: dict[str, list[float]], num_loads: int) -> Row:
    medians = {one: statistics.median(steps[one]) for one in ("device", kind)}
    p99 = {one: statistics.quantiles(steps[one], n=100)[98] for one in ("device", kind)}
    whence = "new files" if kind == "new" else kind
    return figure(
        f"step time while adapters load from {whence} / without",
        medians[kind] / medians["device"],
        "ratio",
        ratio_p99=round(p99[kind] / p99["device"], 4),
        step_ms=round(medians[kind], 3),
        step_ms_without=round(medians["device"], 3),
        step_ms_p99=round(p99[kind], 3),
        step_ms_p99_without=round(p99["device"], 3),
        step_ms_max=round(max(steps[kind]), 3),
        num_loads=num_loads,
        every_ms=INTERVAL_S * 1e3,
        rank=stage.rank,
        num_steps=len(steps[kind]),
    )
