"""Adapters loaded, unloaded and replaced under their names while requests run.

Every answer is held against its solo answer: that of the version which the name stood for when the
request was sent, alone in a batch, on an engine where nothing ever moves. A batch of another size
may round otherwise, so an answer counts as far as each of its choices leads by a margin: there, a
difference is a wrong adapter, a wrong page or a wrong block, not rounding.
"""

import random
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from inference import Engine
from inference.request import (
    Aborted,
    AdapterInfo,
    Event,
    Finished,
    GenerateRequest,
    Token,
)
from tests.inference.driving import TERMINAL, Client, greedy

MIN_TOKENS = 4
PROMPT_LENS = (5, 16, 23, 40)
NUM_LOADERS = 2
WAIT_S = 60
# Who is asked for, until others are: with it the device's adapters change.
NUM_HOT, HOT_REQUESTS = 4, 30
# Swaps and aborts, a request.
SWAP_SHARE, ABORT_SHARE = 0.05, 0.03


@dataclass(frozen=True)
class Probe:
    """A prompt and its solo answer under a version, None for the base."""

    version: str | None
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


def find_probes(
    solo: Client, versions: Iterable[str], num_prompts: int, max_tokens: int, margin: float
) -> list[Probe]:
    """solo has every version loaded under its own name. margin: of log-probabilities.

    Left out are answers of less than MIN_TOKENS sure tokens, and those that begin as another
    version's to the same prompt: nobody could tell which of the two answered.
    """
    rng = random.Random(3)
    names = [None, *versions]
    found: list[Probe] = []
    for number in range(num_prompts):
        length = PROMPT_LENS[number % len(PROMPT_LENS)]
        prompt = tuple(rng.randrange(256) for _ in range(length))
        probes = [_ask(solo, name, prompt, max_tokens, margin) for name in names]
        starts = [probe.tokens[:MIN_TOKENS] for probe in probes]
        found += [
            probe
            for probe, start in zip(probes, starts, strict=True)
            if len(start) == MIN_TOKENS and starts.count(start) == 1
        ]
    return found


def _ask(
    solo: Client, name: str | None, prompt: tuple[int, ...], max_tokens: int, margin: float
) -> Probe:
    request_id = solo.submit(list(prompt), greedy(max_tokens, num_logprobs=2), name)
    solo.drain()
    sure: list[int] = []
    for event in solo.events[request_id]:
        if isinstance(event, Token):
            assert event.logprobs is not None
            (_, first), (_, second) = event.logprobs.top
            if first - second < margin:
                break
            sure.append(event.token_id)
    return Probe(name, prompt, tuple(sure))


@dataclass
class Asked:
    """want: what must come, whole unless the request was aborted."""

    want: tuple[int, ...]
    who: str
    is_aborted: bool = False
    events: list[Event] = field(default_factory=list)

    def check(self) -> None:
        got = tuple(event.token_id for event in self.events if isinstance(event, Token))
        ends = [event for event in self.events if isinstance(event, TERMINAL)]
        assert len(ends) == 1 and ends == self.events[-1:], f"{self.who}: ended by {ends}"
        if self.is_aborted and isinstance(ends[0], Aborted):
            assert got == self.want[: len(got)], f"{self.who}: {got} instead of {self.want}"
            return
        assert isinstance(ends[0], Finished), f"{self.who}: {ends[0]}"
        assert got == self.want, f"{self.who}: {got} instead of {self.want}"


@contextmanager
def running(engine: Engine) -> Iterator[None]:
    """The loop at work on a thread of its own, as in a server."""
    loop = threading.Thread(target=engine.run, name="engine")
    loop.start()
    try:
        yield
    finally:
        engine.stop()
        loop.join(WAIT_S)
        assert not loop.is_alive()


class Swapper:
    """The one client of an engine that runs: what a name stands for is known when a request goes.

    versions: folders by version. Files are read by threads beside, as a server does; a name whose
    version is still being loaded is asked for by nobody.
    """

    def __init__(
        self, engine: Engine, versions: dict[str, Path], probes: Sequence[Probe], num_names: int
    ) -> None:
        self.num_loaded = self.num_unloaded = self.max_running = 0
        self._engine = engine
        self._versions = versions
        self._probes: dict[str | None, list[Probe]] = {}
        for probe in probes:
            self._probes.setdefault(probe.version, []).append(probe)
        self._free_names = [f"name-{number}" for number in range(num_names)]
        self._bound: dict[str, str] = {}
        self._hot: list[str] = []
        self._loading: dict[str, tuple[str, Future[AdapterInfo]]] = {}
        self._rng = random.Random(5)
        self._num_open = 0
        self._ended = threading.Condition()

    def run(self, num_requests: int, most_open: int) -> None:
        """Sends, swaps and aborts until num_requests have ended, each as it must. Refills come in
        waves, so that steps with prefills and steps of decodes alone alternate.
        """
        asked: list[Asked] = []
        with ThreadPoolExecutor(NUM_LOADERS) as loaders:
            for name in self._free_names:
                self._load(name, loaders)
            self._free_names.clear()
            wait(loading for _, loading in self._loading.values())
            while len(asked) < num_requests:
                self._wait_below(most_open * 3 // 4)
                self.max_running = max(self.max_running, self._engine.state().num_running)
                while self._num_open < most_open and len(asked) < num_requests:
                    if self._rng.random() < SWAP_SHARE:
                        self._swap(loaders)
                    self._settle()
                    asked.append(self._send(len(asked)))
                self._engine.check_integrity()
            self._wait_below(1)
        for one in asked:
            one.check()

    def _wait_below(self, number: int) -> None:
        with self._ended:
            is_below = self._ended.wait_for(lambda: self._num_open < number, WAIT_S)
        assert is_below, f"{self._num_open} requests do not end"

    def _swap(self, loaders: ThreadPoolExecutor) -> None:
        """A name gets a version, loses it, or changes it."""
        names = [*self._free_names, *self._bound]
        if not names:
            return
        name = self._rng.choice(names)
        if name in self._bound:
            self._engine.unload_adapter(name)
            self.num_unloaded += 1
            del self._bound[name]
            self._free_names.append(name)
            if self._rng.random() < 0.3:
                return
        self._free_names.remove(name)
        self._load(name, loaders)

    def _load(self, name: str, loaders: ThreadPoolExecutor) -> None:
        version = self._rng.choice(list(self._versions))
        path = str(self._versions[version])
        self._loading[name] = version, loaders.submit(self._engine.load_adapter, name, path)

    def _settle(self) -> None:
        """What is loaded may be asked for."""
        for name, (version, loading) in list(self._loading.items()):
            if loading.done():
                assert loading.result().name == name
                self._bound[name] = version
                self.num_loaded += 1
                del self._loading[name]

    def _send(self, number: int) -> Asked:
        if number % HOT_REQUESTS == 0:
            self._hot = self._rng.sample(sorted(self._bound), min(NUM_HOT, len(self._bound)))
        name = self._rng.choice([None, *(name for name in self._hot if name in self._bound)])
        version = None if name is None else self._bound[name]
        probe = self._rng.choice(self._probes[version])
        num_tokens = self._rng.randint(MIN_TOKENS, len(probe.tokens))
        digest = None if name is None else self._engine.resolve_adapter(name)
        asked = Asked(probe.tokens[:num_tokens], f"request {number} of {name} = {version}")

        def on_event(event: Event) -> None:
            asked.events.append(event)
            if isinstance(event, TERMINAL):
                with self._ended:
                    self._num_open -= 1
                    self._ended.notify()

        request_id = f"swap-{number}"
        request = GenerateRequest(request_id, probe.prompt, greedy(num_tokens), digest)
        with self._ended:
            self._num_open += 1
        self._engine.submit(request, on_event)
        if self._rng.random() < ABORT_SHARE:
            asked.is_aborted = True
            self._engine.abort(request_id)
        return asked
