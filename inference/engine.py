"""The engine: takes requests, plans, runs and answers. One loop thread; any thread may talk to it.

Everything shared is guarded by one lock, held while planning and while taking results in, never
during a forward. Events are delivered by the loop's thread outside the lock, in order a request.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Items

from inference.adapter_memory import adapter_store
from inference.config import EngineConfig
from inference.errors import EngineError, ErrorCode
from inference.grammar import Grammars
from inference.kv_cache import KvCache
from inference.model_runner import ModelRunner, Outcome
from inference.model_spec import ModelSpec
from inference.offline import generate
from inference.request import (
    Aborted,
    AdapterInfo,
    EngineState,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    SamplingParams,
    Token,
)
from inference.request_check import check_request
from inference.sampler import Sampled, Sampler
from inference.scheduler import Limits, Plan, Scheduler
from inference.sequence import Sequence
from inference.snapshot import engine_stats
from inference.startup import start
from inference.stats import Counters, EngineStats

logger = logging.getLogger(__name__)

OnEvent = Callable[[Event], None]
Delivery = tuple[OnEvent, Event]

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
        self._adapters = adapter_store(config, parts, self._lock)
        cache = KvCache(parts.num_kv_blocks, config.kv_block_size, config.prefix_cache)
        limits = Limits(config.max_num_seqs, parts.max_batch_tokens)
        self._scheduler = Scheduler(limits, cache, self._adapters.pool)
        sampler = Sampler(parts.spec.eos_token_ids)
        self._runner = ModelRunner(parts.model, parts.kv, parts.lora, sampler, parts.graphs)
        self._grammars = Grammars(
            config.model_path, parts.spec.vocab_size, parts.spec.eos_token_ids, self._wake
        )
        self._counters = Counters()
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
            self._check_adapter(request.digest)
            seed = request.sampling.seed
            generator = random.Random(self._seeds.getrandbits(64) if seed is None else seed)
            sequence = Sequence(request, on_event, generator, time.monotonic())
            sequence.grammar = grammar
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
        """Plans and runs one forward, delivers its events; False when there was nothing to do."""
        deliveries: list[Delivery] = []
        with self._lock:
            self._adapters.settle_copies()
            self._end_aborted(deliveries)
            self._fetch_missing(deliveries)
            self._take_grammars(deliveries)
            plan = self._scheduler.schedule()
            packed = [self._adapters.packed(adapter) for adapter in plan.copies]
        if plan.work or plan.copies:
            try:
                self._adapters.start_copies(plan.copies, packed)
                outcome = self._runner.run(plan)
            except Exception:
                logger.exception("a step failed")
                self._fail_plan(plan, deliveries)
            else:
                self._take_in(plan, outcome, deliveries)
        for on_event, event in deliveries:
            _deliver(on_event, event)
        return bool(plan.work or plan.copies or deliveries)

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
                _deliver(on_event, event)
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

    def _check_adapter(self, digest: str | None) -> None:
        adapter = None if digest is None else self._scheduler.adapters.find(digest)
        if digest is not None and (adapter is None or not adapter.names):
            raise EngineError(ErrorCode.MODEL_NOT_FOUND, f"no adapter {digest} is loaded", "model")

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
            self._lock.wait(0.02 if self._scheduler.num_waiting else 0.5)

    def _end_aborted(self, deliveries: list[Delivery]) -> None:
        for request_id in self._aborts:
            sequence = self._scheduler.find(request_id)
            if sequence is not None:
                self._end(sequence, Aborted(request_id), deliveries)
        self._aborts.clear()

    def _fetch_missing(self, deliveries: list[Delivery]) -> None:
        self._adapters.fetch_pinned()
        for digest, sequences in self._scheduler.waiting_for_host().items():
            error = self._adapters.take_error(digest)
            if error is None:
                self._adapters.fetch(digest)
                continue
            for sequence in sequences:
                self._end(sequence, _failed(sequence, error), deliveries)

    def _take_grammars(self, deliveries: list[Delivery]) -> None:
        for sequence, error in self._grammars.settle(list(self._scheduler.preparing.values())):
            if error is None:
                self._scheduler.prepared(sequence)
            else:
                self._end(sequence, _failed(sequence, error), deliveries)

    def _take_in(self, plan: Plan, outcome: Outcome, deliveries: list[Delivery]) -> None:
        with self._lock:
            self._count_step(plan, outcome)
            sampled = iter(outcome.sampled)
            for work in plan.work:
                samples = work.samples
                result = next(sampled) if samples else None
                if result is not None and result.token_id is None:
                    # Without an error: the same work is planned again.
                    if result.error is not None:
                        event = _failed(work.sequence, result.error)
                        self._end(work.sequence, event, deliveries)
                    continue
                self._scheduler.computed(work)
                if result is not None:
                    self._take_token(work.sequence, result, deliveries)

    def _take_token(self, sequence: Sequence, result: Sampled, deliveries: list[Delivery]) -> None:
        assert result.token_id is not None
        sequence.append(result.token_id)
        self._counters.num_output_tokens += 1
        event = Token(sequence.request_id, result.token_id, sequence.num_cached, result.logprobs)
        deliveries.append((sequence.on_event, event))
        reason = sequence.finish_reason(self.spec.eos_token_ids, self.max_model_len)
        if reason is not None:
            self._end(sequence, Finished(sequence.request_id, reason), deliveries)

    def _fail_plan(self, plan: Plan, deliveries: list[Delivery]) -> None:
        """Every request of the failed forward ends; pages that may be half written are given up."""
        with self._lock:
            for work in plan.work:
                error = EngineError(ErrorCode.INTERNAL, "the engine failed on this batch")
                self._end(work.sequence, _failed(work.sequence, error), deliveries)
            for adapter in plan.copies:
                self._adapters.give_up_copy(adapter)

    def _end(self, sequence: Sequence, event: Event, deliveries: list[Delivery]) -> None:
        """The one place where a request ends."""
        self._adapters.drop(self._scheduler.finish(sequence))
        self._counters.count_end(event, sequence)
        deliveries.append((sequence.on_event, event))

    def _count_step(self, plan: Plan, outcome: Outcome) -> None:
        self._counters.count_step(
            outcome.step_ms,
            outcome.lora_ms,
            [(w.sequence, w.num_tokens) for w in plan.work if w.sequence.digest is not None],
        )


def _failed(sequence: Sequence, error: EngineError) -> Failed:
    return Failed(sequence.request_id, error.code, error.message, error.param)


def _deliver(on_event: OnEvent, event: Event) -> None:
    try:
        on_event(event)
    except Exception:
        logger.exception("a listener failed on %s", type(event).__name__)
