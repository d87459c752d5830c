"""Prometheus metrics of one engine process, in a registry of its own. Every label set is bounded.

The front counts requests and times tokens as a client sees them; what the engine knows (adapters,
KV cache, queue) is read from its own counters when scraped.
"""

from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from inference.request import AdapterInfo, EngineState
from inference.stats import EngineStats, Spread

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Timing:
    """Token arrivals of one HTTP request; times in seconds of one monotonic clock."""

    def __init__(self, started_s: float, num_choices: int) -> None:
        self.started_s = started_s
        self.first_s: list[float | None] = [None] * num_choices
        self.last_s = [0.0] * num_choices
        self.num_tokens = [0] * num_choices

    def token(self, number: int, now_s: float) -> None:
        if self.first_s[number] is None:
            self.first_s[number] = now_s
        self.last_s[number] = now_s
        self.num_tokens[number] += 1

    def to_first_s(self) -> Iterator[float]:
        return (first - self.started_s for first in self.first_s if first is not None)

    def per_token_s(self) -> Iterator[float]:
        """Mean time between tokens, for each choice of two tokens or more."""
        for first, last, num in zip(self.first_s, self.last_s, self.num_tokens, strict=True):
            if first is not None and num > 1:
                yield (last - first) / (num - 1)


class FrontMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter(
            "requests",
            "HTTP requests by route and outcome: ok, client_error, server_error, disconnected.",
            ("route", "outcome"),
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of ended requests.")
        self.cached_tokens = self._counter(
            "prompt_tokens_cached", "Prompt tokens that came from the prefix cache."
        )
        self.completion_tokens = self._counter(
            "completion_tokens", "Generated tokens of ended requests."
        )
        self.ttft = self._histogram(
            "time_to_first_token", "From submission to the first token.", SECONDS
        )
        self.tpot = self._histogram(
            "time_per_output_token", "Mean time between the tokens of a sequence.", TOKEN_SECONDS
        )

    def _counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(f"inference_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        name = f"inference_{name}_seconds"
        return Histogram(name, text, registry=self.registry, buckets=buckets)

    def observe_tokens(self, prompt: int, cached: int, completion: int, timing: Timing) -> None:
        """Once for each HTTP request that generated, whatever ended it."""
        self.prompt_tokens.inc(prompt)
        self.cached_tokens.inc(cached)
        self.completion_tokens.inc(completion)
        for seconds in timing.to_first_s():
            self.ttft.observe(seconds)
        for seconds in timing.per_token_s():
            self.tpot.observe(seconds)

    def watch(self, engine: "CountingEngine") -> None:
        self.registry.register(EngineCollector(engine))

    def render(self) -> bytes:
        return generate_latest(self.registry)


class CountingEngine(Protocol):
    def stats(self) -> EngineStats: ...

    def state(self) -> EngineState: ...


# metric: (field of EngineStats, help)
GAUGES = {
    "lora_active_count": ("num_active_adapters", "Adapters that requests are using now."),
    "inference_requests_waiting": ("num_waiting", "Sequences that wait for admission."),
    "inference_requests_running": ("num_running", "Sequences in the batch."),
    "inference_kv_blocks": ("num_kv_blocks", "KV blocks in all."),
    "inference_kv_blocks_free": ("num_free_kv_blocks", "KV blocks that a sequence can take."),
}
COUNTERS = {
    "lora_cache_hits": ("num_adapter_hits", "Admissions that found their adapter on the device."),
    "lora_cache_misses": ("num_adapter_misses", "Admissions that had to wait for their adapter."),
    "lora_swap_count": ("num_adapter_evictions", "Adapters that left the device for another."),
    "lora_device_loads": ("num_adapter_loads", "Adapters copied to the device."),
    "lora_requests": ("num_lora_requests", "Finished sequences that used an adapter."),
    "lora_requests_overhead_ms": ("lora_request_ms_total", "Time that LoRA added to them."),
    "inference_prefill_tokens": ("num_prompt_tokens", "Prompt tokens of admitted sequences."),
    "inference_prefix_hit_tokens": ("num_cached_tokens", "Those that the prefix cache had."),
    "inference_output_tokens": ("num_output_tokens", "Tokens sampled."),
    "inference_preemptions": ("num_preemptions", "Sequences put back for want of KV blocks."),
    "inference_steps": ("num_steps", "Forwards."),
    "inference_step_ms": ("step_ms_total", "Time in forwards."),
    "inference_sequences_finished": ("num_finished", "Sequences that ended by themselves."),
    "inference_sequences_aborted": ("num_aborted", "Sequences given up by their client."),
    "inference_sequences_failed": ("num_failed", "Sequences that an error ended."),
}


SPREADS = {
    "sequences": ("inference_step_sequences", "Sequences of a step."),
    "tokens": ("inference_step_tokens", "Tokens of a step, prompts' and decodes'."),
    "adapters": ("inference_step_adapters", "Distinct adapters of a step."),
}
# Why a step was no replay of a graph, as ModelRunner says.
REPLAYS = ("graph", "prompt graph")
FALLBACKS = ("prefill", "no graphs", "too many rows")
LOADS = (("disk", "host"), ("compiled", "host"), ("host", "device"))
EVICTIONS = (
    *((tier, cause) for tier in ("device", "host") for cause in ("room", "unload")),
    ("device", "failed"),
    ("compiled", "room"),
)
# Named one by one; the others are in lora_adapters.
MAX_NAMED_ADAPTERS = 100


class EngineCollector(Collector):
    """Reads the engine's totals at each scrape."""

    def __init__(self, engine: CountingEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        for name, (key, text) in GAUGES.items():
            yield GaugeMetricFamily(name, text, getattr(stats, key))
        for name, (key, text) in COUNTERS.items():
            yield CounterMetricFamily(name, text, getattr(stats, key))
        yield from _ratios(stats)
        yield _queue_times(stats)
        yield from _graphs(stats)
        yield from (_spread(*SPREADS[name], spread) for name, spread in stats.spreads.items())
        yield _load_times(stats)
        yield _evictions(stats)
        adapters = self._engine.state().adapters
        yield _adapters(adapters)
        yield _named_adapters(adapters)


def _adapters(adapters: Sequence[AdapterInfo]) -> Metric:
    """By tier, not by name: tenants come and go, time series stay."""
    family = GaugeMetricFamily("lora_adapters", "Registered names by tier.", labels=("tier",))
    tiers = Tally(info.tier for info in adapters)
    for tier in ("device", "host", "disk"):
        family.add_metric((tier,), tiers[tier])
    return family


def _named_adapters(adapters: Sequence[AdapterInfo]) -> Metric:
    """Those on the device, most used first: as many as its memory holds, and no more than a cap."""
    labels = ("adapter", "tier", "pinned", "rank")
    text = f"1 for each adapter on the device; the {MAX_NAMED_ADAPTERS} most used ones."
    family = GaugeMetricFamily("lora_adapter_loaded", text, labels=labels)
    placed = [info for info in adapters if info.tier == "device"]
    for info in sorted(placed, key=lambda i: (-i.num_leases, i.name))[:MAX_NAMED_ADAPTERS]:
        values = (info.name, info.tier, str(info.pinned).lower(), str(info.rank))
        family.add_metric(values, 1)
    return family


def _graphs(stats: EngineStats) -> Iterator[Metric]:
    replays = sum(stats.steps_by_path.get(path, 0) for path in REPLAYS)
    yield CounterMetricFamily("inference_graph_replays", "Steps that replayed a graph.", replays)
    text = "Steps launched op by op, by why no graph served them."
    family = CounterMetricFamily("inference_graph_fallbacks", text, labels=("reason",))
    for reason in FALLBACKS:
        family.add_metric((reason,), stats.steps_by_path.get(reason, 0))
    yield family


def _spread(name: str, text: str, spread: Spread) -> Metric:
    """Prometheus' buckets count all up to their bound."""
    at_most = list(accumulate(spread.counts))
    bounds = [*map(str, spread.bounds), "+Inf"]
    return HistogramMetricFamily(
        name, text, list(zip(bounds, at_most, strict=True)), sum_value=spread.total
    )


def _load_times(stats: EngineStats) -> Metric:
    text = "Loads of adapters and their seconds; from the host: of the copy to the device."
    family = SummaryMetricFamily("lora_adapter_load_seconds", text, labels=("from", "to"))
    for way in LOADS:
        family.add_metric(way, *stats.adapter_load_times.get(way, (0, 0.0)))
    return family


def _evictions(stats: EngineStats) -> Metric:
    text = "Adapters that left a tier: for another's room, unloaded, or after a failed copy."
    family = CounterMetricFamily("lora_adapter_evictions", text, labels=("tier", "cause"))
    for place in EVICTIONS:
        family.add_metric(place, stats.adapter_evictions.get(place, 0))
    return family


def _queue_times(stats: EngineStats) -> Metric:
    """By class of tenant, not by tenant: time series stay."""
    text = "From arrival to admission, by the tenant's weight: light below 1, normal, heavy above."
    family = SummaryMetricFamily("inference_queue_seconds", text, labels=("tenant_class",))
    for name, times in stats.queue_times.items():
        family.add_metric((name,), times.num_admitted, times.total_s)
    return family


def _ratios(stats: EngineStats) -> Iterator[Metric]:
    """Since the start; 0 while there is nothing to divide by."""
    looked = stats.num_adapter_hits + stats.num_adapter_misses
    rate = stats.num_adapter_hits / looked if looked else 0.0
    yield GaugeMetricFamily("lora_cache_hit_rate", "Hits of the device tier, 0 to 1.", rate)
    overhead_ms = stats.lora_request_ms_total / (stats.num_lora_requests or 1)
    text = "Mean time that LoRA added to a finished sequence with an adapter."
    yield GaugeMetricFamily("lora_per_request_overhead_ms", text, overhead_ms)
    used = stats.num_kv_blocks - stats.num_free_kv_blocks
    yield GaugeMetricFamily(
        "inference_kv_use", "Used share of KV blocks.", used / (stats.num_kv_blocks or 1)
    )
