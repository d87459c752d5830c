"""What the engine counts, as plain numbers. The HTTP front exports them."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from inference.request import Aborted, Event, Failed, Finished
from inference.sequence import Sequence


@dataclass(frozen=True)
class QueueTime:
    """From arrival to first admission, over all sequences of a class of tenants."""

    num_admitted: int = 0
    total_s: float = 0.0


# Of tenants, by their weight beside others: below 1, 1, above.
TENANT_CLASSES = ("light", "normal", "heavy")


def tenant_class(weight: float) -> str:
    return TENANT_CLASSES[(weight >= 1) + (weight > 1)]


class QueueTimes:
    """totals: by TENANT_CLASSES."""

    def __init__(self) -> None:
        self.totals = {name: QueueTime() for name in TENANT_CLASSES}

    def count(self, weight: float, waited_s: float) -> None:
        name = tenant_class(weight)
        so_far = self.totals[name]
        self.totals[name] = QueueTime(so_far.num_admitted + 1, so_far.total_s + waited_s)


@dataclass
class Spread:
    """How numbers were spread. counts: of those up to each bound and above the one before it; the
    last: of those above all bounds.
    """

    bounds: tuple[int, ...]
    counts: list[int]
    total: int = 0

    @classmethod
    def over(cls, *bounds: int) -> "Spread":
        return cls(bounds, [0] * (len(bounds) + 1))

    def count(self, value: int) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> "Spread":
        return Spread(self.bounds, list(self.counts), self.total)


def step_spreads() -> dict[str, Spread]:
    """Of the sequences, tokens and distinct adapters of a step."""
    return {
        "sequences": Spread.over(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
        "tokens": Spread.over(1, 4, 16, 64, 256, 1024, 4096, 16384),
        "adapters": Spread.over(0, 1, 2, 4, 8, 16, 32, 64, 128, 256),
    }


class LoadTimes:
    """Of adapters, by where they came from ("disk": PEFT's files; "compiled"; "host") and where to
    ("host", "device"): how many, and their seconds in all. From the host: of the copy itself.
    """

    def __init__(self) -> None:
        self.totals: dict[tuple[str, str], tuple[int, float]] = {}

    def count(self, origin: str, target: str, seconds: float) -> None:
        num, total_s = self.totals.get((origin, target), (0, 0.0))
        self.totals[origin, target] = (num + 1, total_s + seconds)


@dataclass(frozen=True)
class EngineStats:
    """Totals since the start, and a few gauges.

    num_adapter_hits, num_adapter_misses: admissions that found their adapter on the device, or not.
    num_adapter_loads, num_adapter_evictions: copies to the device, and those that made room.
    lora_ms_total: time in LoRA ops (CPU: clocked around every op; CUDA: one step in 64 by events,
    the others taken as that step's cost a token), shared out by tokens; num_lora_requests: finished
    requests with an adapter, and lora_request_ms_total their shares: the quotient is the overhead.
    """

    num_waiting: int
    num_running: int
    num_kv_blocks: int
    num_free_kv_blocks: int
    num_active_adapters: int
    num_adapter_hits: int
    num_adapter_misses: int
    num_adapter_loads: int
    num_adapter_evictions: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_preemptions: int
    num_steps: int
    num_finished: int
    num_aborted: int
    num_failed: int
    step_ms_total: float
    lora_ms_total: float
    num_lora_requests: int
    lora_request_ms_total: float
    # By the names of model_runner: which graphs, or why a step was no replay.
    steps_by_path: dict[str, int]
    # As step_spreads.
    spreads: dict[str, Spread]
    # By TENANT_CLASSES.
    queue_times: dict[str, QueueTime]
    # LoadTimes.totals.
    adapter_load_times: dict[tuple[str, str], tuple[int, float]]
    # By tier ("device", "host", "compiled") and cause ("room", "unload", "failed").
    adapter_evictions: dict[tuple[str, str], int]


@dataclass
class Counters:
    """The engine's own running totals; the others live with what they count."""

    num_output_tokens: int = 0
    num_steps: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_failed: int = 0
    step_ms_total: float = 0.0
    lora_ms_total: float = 0.0
    num_lora_requests: int = 0
    lora_request_ms_total: float = 0.0
    # By the names of model_runner: which graphs, or why a step was no replay.
    steps_by_path: dict[str, int] = field(default_factory=dict)
    spreads: dict[str, Spread] = field(default_factory=step_spreads)
    _lora_ms_per_token: float = 0.0

    def count_step(
        self, step_ms: float, lora_ms: float | None, users: list[tuple[Sequence, int]], path: str
    ) -> None:
        """users: sequences with an adapter, their tokens in the step. lora_ms None: unmeasured.
        path: "graph", or why the step was no replay of one.
        """
        self.num_steps += 1
        self.steps_by_path[path] = self.steps_by_path.get(path, 0) + 1
        self.step_ms_total += step_ms
        num_tokens = sum(tokens for _, tokens in users)
        if not num_tokens:
            return
        if lora_ms is not None:
            self._lora_ms_per_token = lora_ms / num_tokens
        self.lora_ms_total += self._lora_ms_per_token * num_tokens
        for sequence, tokens in users:
            sequence.lora_ms += self._lora_ms_per_token * tokens

    def count_batch(self, work: Iterable[tuple[Sequence, int]]) -> None:
        """work: the sequences of a step, with the number of their tokens in it."""
        rows = list(work)
        digests = {s.digest for s, _ in rows if s.digest is not None}
        self.spreads["sequences"].count(len(rows))
        self.spreads["tokens"].count(sum(num_tokens for _, num_tokens in rows))
        self.spreads["adapters"].count(len(digests))

    def count_end(self, event: Event, sequence: Sequence) -> None:
        self.num_finished += isinstance(event, Finished)
        self.num_aborted += isinstance(event, Aborted)
        self.num_failed += isinstance(event, Failed)
        if sequence.digest is not None and isinstance(event, Finished):
            self.num_lora_requests += 1
            self.lora_request_ms_total += sequence.lora_ms

    def exported(self) -> dict[str, Any]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        del values["_lora_ms_per_token"]
        values["steps_by_path"] = dict(self.steps_by_path)
        values["spreads"] = {name: spread.copy() for name, spread in self.spreads.items()}
        return values
