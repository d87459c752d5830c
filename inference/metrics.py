"""Prometheus metrics of one engine process, in a registry of its own. Every label set is bounded.

The front counts requests and times tokens as a client sees them; what the engine knows (adapters,
KV cache, queue) is read from its own counters when scraped.
"""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

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
        self.requests = Counter(
            "inference_requests",
            "HTTP requests by route and outcome: ok, client_error, server_error, disconnected.",
            ("route", "outcome"),
            registry=self.registry,
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of ended requests.")
        self.cached_tokens = self._counter(
            "prompt_tokens_cached", "Prompt tokens that came from the prefix cache."
        )
        self.completion_tokens = self._counter(
            "completion_tokens", "Generated tokens of ended requests."
        )
        self.ttft = self._histogram(
            "time_to_first_token_seconds", "From submission to the first token.", SECONDS
        )
        self.tpot = self._histogram(
            "time_per_output_token_seconds",
            "Mean time between the tokens of a sequence.",
            TOKEN_SECONDS,
        )

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"inference_{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"inference_{name}", text, registry=self.registry, buckets=buckets)

    def observe_tokens(self, prompt: int, cached: int, completion: int, timing: Timing) -> None:
        """Once for each HTTP request that generated, whatever ended it."""
        self.prompt_tokens.inc(prompt)
        self.cached_tokens.inc(cached)
        self.completion_tokens.inc(completion)
        for seconds in timing.to_first_s():
            self.ttft.observe(seconds)
        for seconds in timing.per_token_s():
            self.tpot.observe(seconds)

    def render(self) -> bytes:
        return generate_latest(self.registry)
