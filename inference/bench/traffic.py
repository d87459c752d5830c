"""Requests to an engine that this thread steps, and the time of each of their tokens.

Greedy, of a fixed length, each prompt its own. A step's time is read off the tokens: what a client
waits between two of them, however the loop divides its work.
"""

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from inference.engine import Engine
from inference.request import Aborted, Event, Failed, GenerateRequest, SamplingParams, Token

# Where nothing can be computed, a file is read by threads that need this one's turns.
IDLE_S = 2e-4


@dataclass
class Sent:
    """Times in s of time.perf_counter(). adapter: its name, None for the base."""

    adapter: str | None
    sent_s: float
    token_s: list[float] = field(default_factory=list)

    @property
    def first_s(self) -> float:
        """From sending to the first token."""
        return self.token_s[0] - self.sent_s


class Traffic:
    """Only one at a time steps an engine. A request that fails ends the measurement."""

    _number = 0

    def __init__(self, engine: Engine, prompt_tokens: int, output_tokens: int) -> None:
        self.engine = engine
        self._prompt_tokens, self._output_tokens = prompt_tokens, output_tokens
        self._open: set[str] = set()
        self._failure: Event | None = None

    @property
    def num_open(self) -> int:
        return len(self._open)

    def send(
        self,
        adapter: str | None = None,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
    ) -> Sent:
        """Submits one; its tokens come while this thread steps."""
        Traffic._number += 1
        request_id = f"bench-{Traffic._number}"
        length = prompt_tokens or self._prompt_tokens
        ids = _prompt(Traffic._number, length, self.engine.spec.vocab_size)
        params = SamplingParams(
            output_tokens or self._output_tokens, temperature=0.0, ignore_eos=True
        )
        digest = None if adapter is None else self.engine.resolve_adapter(adapter)
        sent = Sent(adapter, time.perf_counter())
        self._open.add(request_id)
        request = GenerateRequest(request_id, ids, params, digest)
        self.engine.submit(request, partial(self._hear, sent))
        return sent

    def _hear(self, sent: Sent, event: Event) -> None:
        if isinstance(event, Token):
            sent.token_s.append(time.perf_counter())
            return
        self._open.discard(event.request_id)
        if isinstance(event, Failed | Aborted):
            self._failure = event

    def step(self) -> None:
        if not self.engine.step():
            time.sleep(IDLE_S)
        if self._failure is not None:
            raise RuntimeError(f"a request of the bench did not finish: {self._failure}")

    def drain(self) -> None:
        while self._open:
            self.step()

    def burst(self, adapters: list[str | None]) -> list[Sent]:
        """One request each, all at once, to their ends."""
        sent = [self.send(name) for name in adapters]
        self.drain()
        return sent


@dataclass(frozen=True)
class Window:
    """What a closed loop did between two times. sent: requests whose first token fell into it."""

    tokens_per_s: float
    sent: list[Sent]
    num_loads: int

    def first_ms(self, percent: int) -> float:
        """Percentile of the times to first token."""
        times = sorted(each.first_s for each in self.sent)
        if not times:
            raise RuntimeError("no request got its first token in the window: too short")
        return times[min(len(times) - 1, len(times) * percent // 100)] * 1e3


def closed_loop(
    traffic: Traffic,
    requests: Iterator[tuple[str | None, int]],
    concurrency: int,
    warm_s: float,
    measure_s: float,
) -> Window:
    """concurrency requests at any time for warm_s, then measure_s, which count; then the open ones
    end. requests: adapter and tokens to generate of each.
    """
    sent: list[Sent] = []
    begin_s = time.perf_counter() + warm_s
    end_s = begin_s + measure_s
    loads_before: int | None = None
    while (now_s := time.perf_counter()) < end_s:
        if loads_before is None and now_s >= begin_s:
            loads_before = traffic.engine.stats().num_adapter_loads
        while traffic.num_open < concurrency:
            adapter, output_tokens = next(requests)
            sent.append(traffic.send(adapter, output_tokens=output_tokens))
        traffic.step()
    num_loads = traffic.engine.stats().num_adapter_loads - (loads_before or 0)
    traffic.drain()
    num_tokens = sum(begin_s <= at < end_s for each in sent for at in each.token_s)
    within = [each for each in sent if begin_s <= each.token_s[0] < end_s]
    return Window(num_tokens / measure_s, within, num_loads)


def steady_steps_ms(sent: list[Sent]) -> list[float]:
    """Times between tokens while all of sent decode."""
    last = max(sent, key=lambda each: each.token_s[0])
    end_s = min(each.token_s[-1] for each in sent)
    times = [at for at in last.token_s if at <= end_s]
    return [(after - before) * 1e3 for before, after in itertools.pairwise(times)]


def tokens_per_s(sent: list[Sent]) -> float:
    """Of a burst: from the first request sent to the last token."""
    num_tokens = sum(len(each.token_s) for each in sent)
    begin_s = min(each.sent_s for each in sent)
    return num_tokens / (max(each.token_s[-1] for each in sent) - begin_s)


def _prompt(number: int, length: int, vocab_size: int) -> tuple[int, ...]:
    return tuple((number * 7919 + i * 31) % vocab_size for i in range(length))
