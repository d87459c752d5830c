"""The engine: takes requests, plans, runs and answers. One loop thread; any thread may talk to it.

Everything shared is guarded by one lock, held while planning and while taking results in, never
during a forward. Events are delivered by the loop's thread outside the lock, in order a request.
"""

import random
import threading
import time
from collections.abc import Sequence as Items

from inference.adapter_memory import adapter_store
from inference.adapter_pool import AdapterPool
from inference.config import EngineConfig
from inference.errors import EngineError, ErrorCode
from inference.flights import Flights
from inference.grammar import Grammars
from inference.kv_cache import KvCache
from inference.model_runner import ModelRunner
from inference.model_spec import ModelSpec
from inference.offline import generate
from inference.plan import Limits
from inference.request import (
    Aborted,
    AdapterInfo,
    EngineState,
    GenerateRequest,
    SamplingParams,
)
from inference.request_check import check_request
from inference.results import Delivery, OnEvent, Results, deliver, failed
from inference.sampler import Sampler
from inference.scheduler import Scheduler
from inference.sequence import Sequence
from inference.snapshot import engine_stats
from inference.startup import Parts, start
from inference.stats import Counters, EngineStats
from inference.warm_up import warm_up

# Between two looks for the end of a copy to the device, while nothing else is to be done.
COPY_POLL_S = 0.0002


class Engine:
    """One base model, many adapters. spec: a model without files, with load_format "dummy".

    Raises EngineError when the configuration cannot be served.
    """

    def __init__(self, config: EngineConfig, spec: ModelSpec | None = None) -> None:
        parts = start(config, spec)
        self.config = config
        self.spec = parts.spec
        self.max_model_len = parts.max_model_len
        self.device, self.dtype = parts.device, parts.dtype
        self._lock = threading.Condition()
        self._adapters = adapter_store(config, parts.spec, parts.lora, self._lock)
        self._scheduler = _scheduler(config, parts, self._adapters.pool)
        self._runner = _warm_runner(parts)
        self._overlaps = parts.device.type == "cuda" if config.overlap is None else config.overlap
        ends = parts.spec.eos_token_ids
        self._grammars = Grammars(config.model_path, parts.spec.vocab_size, ends, self._wake)
        self._counters = Counters()
        self._results = Results(self._scheduler, self._adapters, self._counters, ends)
        self._flights = Flights(
            self._runner, self._scheduler, self._adapters, self._results, self._lock
        )
        self._seeds = random.Random(config.seed)
        self._aborts: set[str] = set()
        self._is_stopped = False

    def submit(self, request: GenerateRequest, on_event: OnEvent) -> None:
        """Accepts a request: on_event gets its tokens and exactly one terminal event, by the loop's
        thread. Raises EngineError when it is refused; then there are no events.
        """
        check_request(request, self.spec.vocab_size, self.max_model_len)
        constraint = request.sampling.constraint
        grammar = None if constraint is None else self._grammars.entry(constraint)
        with self._lock:
            if self._is_stopped:
                raise EngineError(ErrorCode.OVERLOADED, "the engine is stopping")
            if self._scheduler.find(request.request_id) is not None:
                message = f"request id {request.request_id!r} is in use"
                raise EngineError(ErrorCode.INVALID_REQUEST, message)
            lora_start = self._lora_start(request)
            seed = request.sampling.seed
            generator = random.Random(self._seeds.getrandbits(64) if seed is None else seed)
            sequence = Sequence(request, on_event, generator, time.monotonic())
            sequence.grammar, sequence.max_model_len = grammar, self.max_model_len
            sequence.lora_start = lora_start
            self._scheduler.add(sequence)
            self._lock.notify_all()

    def abort(self, request_id: str) -> None:
        """Ends a request with Aborted at the next step; unknown or finished ids are ignored."""
        with self._lock:
            self._aborts.add(request_id)
            self._lock.notify_all()

    def load_adapter(self, name: str, path: str, pinned: bool = False) -> AdapterInfo:
        """Reads, verifies and names the adapter below path; see AdapterStore.load."""
        return self._adapters.load(name, path, pinned)

    def unload_adapter(self, name: str) -> None:
        """New requests are refused at once, running ones finish. Raises MODEL_NOT_FOUND."""
        self._adapters.unload(name)

    def resolve_adapter(self, name: str) -> str:
        """The digest that name stands for now. Raises MODEL_NOT_FOUND."""
        return self._adapters.resolve(name)

    def state(self) -> EngineState:
        with self._lock:
            cache = self._scheduler.cache
            return EngineState(
                model=self.spec.name,
                num_waiting=self._scheduler.num_waiting,
                num_running=self._scheduler.num_running,
                num_kv_blocks=cache.num_usable,
                num_free_kv_blocks=cache.num_free,
                max_model_len=self.max_model_len,
                max_lora_rank=self.config.max_lora_rank,
                max_loras_per_batch=self.config.max_loras_per_batch,
                adapters=self._adapters.infos(),
            )

    def stats(self) -> EngineStats:
        with self._lock:
            return engine_stats(self._scheduler, self._adapters, self._counters)

    def step(self) -> bool:
        """Plans and launches one forward, delivers events; False when there was nothing to do.

        Where steps overlap, the forward is launched before the tokens of the step before it are
        read, and its own are drawn after that: what chooses a token knows all before it.
        """
        deliveries: list[Delivery] = []
        with self._lock:
            self._adapters.settle_copies()
            self._end_aborted(deliveries)
            self._fetch_missing(deliveries)
            self._take_grammars(deliveries)
            plan = self._scheduler.schedule()
            packed = [self._adapters.packed(adapter) for adapter in plan.copies]
        forward = self._flights.launch(plan, packed, deliveries)
        self._flights.collect(deliveries)
        if forward is not None:
            self._flights.sample(forward, deliveries)
        if not self._overlaps:
            self._flights.collect(deliveries)
        for on_event, event in deliveries:
            deliver(on_event, event)
        return bool(plan.work or plan.copies or deliveries or self._flights.is_one_on_its_way)

    def run(self) -> None:
        """Steps until stop(), for a thread of its own. What is left then ends as aborted, also when
        planning itself fails: nobody waits for a loop that is gone.
        """
        try:
            while not self._is_stopped:
                if not self.step():
                    self._wait_for_news()
        finally:
            self.stop()
            deliveries: list[Delivery] = []
            with self._lock:
                self._aborts.update(s.request_id for s in self._scheduler)
                self._end_aborted(deliveries)
            for on_event, event in deliveries:
                deliver(on_event, event)
            self._adapters.close()
            self._grammars.close()

    def stop(self) -> None:
        """Ends run() after the step at hand; later requests are refused."""
        with self._lock:
            self._is_stopped = True
            self._lock.notify_all()

    def generate(
        self,
        prompts: Items[Items[int]],
        sampling: SamplingParams | Items[SamplingParams],
        adapters: Items[str | None] | None = None,
    ) -> list[list[int]]:
        """Offline: each prompt's generated tokens, stop token included; see offline.generate."""
        return generate(self, prompts, sampling, adapters)

    def check_integrity(self) -> None:
        """Raises AssertionError unless KV blocks, adapter pages, claims and leases add up."""
        with self._lock:
            self._scheduler.check_integrity()

    def _lora_start(self, request: GenerateRequest) -> int:
        """The first position of the prompt that its adapter applies to."""
        digest = request.digest
        if digest is None:
            return 0
        adapter = self._scheduler.adapters.find(digest)
        if adapter is None or not adapter.names:
            raise EngineError(ErrorCode.MODEL_NOT_FOUND, f"no adapter {digest} is loaded", "model")
        return adapter.start_in(request.token_ids)

    def _wake(self) -> None:
        with self._lock:
            self._lock.notify_all()

    def _wait_for_news(self) -> None:
        with self._lock:
            if self._is_stopped or self._aborts or self._scheduler.num_running:
                return
            if self._adapters.is_copying:
                # The end of a copy tells nobody: it is asked for.
                self._lock.wait(COPY_POLL_S)
                return
            # What waits, waits for a file or a grammar: that notifies, unless it was just now.
            if not self._lock.wait(0.02 if self._scheduler.num_waiting else 0.5):
                self._scheduler.check_at_rest()

    def _end_aborted(self, deliveries: list[Delivery]) -> None:
        for request_id in self._aborts:
            sequence = self._scheduler.find(request_id)
            if sequence is not None:
                self._results.end(sequence, Aborted(request_id), deliveries)
        self._aborts.clear()

    def _fetch_missing(self, deliveries: list[Delivery]) -> None:
        self._adapters.fetch_pinned()
        has_room = True
        for digest, sequences in self._scheduler.waiting_for_host().items():
            error = self._adapters.take_error(digest)
            if error is None:
                # Else those behind a large one would take the room that it waits for, for ever.
                has_room = has_room and self._adapters.fetch(digest)
                continue
            for sequence in sequences:
                self._results.end(sequence, failed(sequence, error), deliveries)

    def _take_grammars(self, deliveries: list[Delivery]) -> None:
        for sequence, error in self._grammars.settle(list(self._scheduler.preparing.values())):
            if error is None:
                self._scheduler.prepared(sequence)
            else:
                self._results.end(sequence, failed(sequence, error), deliveries)


def _scheduler(config: EngineConfig, parts: Parts, adapters: AdapterPool) -> Scheduler:
    cache = KvCache(parts.num_kv_blocks, config.kv_block_size, config.prefix_cache)
    return Scheduler(Limits(config.max_num_seqs, parts.max_batch_tokens), cache, adapters)


def _warm_runner(parts: Parts) -> ModelRunner:
    """On CUDA, with every kernel run once."""
    runner = ModelRunner(
        parts.model,
        parts.kv,
        parts.lora,
        Sampler(parts.spec.eos_token_ids),
        parts.graphs,
        parts.last_tokens,
        parts.prompt_graphs,
    )
    if parts.device.type == "cuda":
        warm_up(runner, parts.max_batch_tokens, parts.max_model_len)
    return runner
