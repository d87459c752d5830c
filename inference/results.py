"""What a step's results mean for its requests: tokens, ends, events. Under the engine's lock."""

import logging
from collections.abc import Callable, Iterable

from inference.adapter_store import AdapterStore
from inference.errors import EngineError, ErrorCode
from inference.model_runner import Outcome
from inference.plan import Work
from inference.prompt_scores import Scored
from inference.request import Event, Failed, Finished, PromptLogprobs, Token
from inference.sampler import Sampled
from inference.scheduler import Scheduler
from inference.sequence import Sequence
from inference.stats import Counters

logger = logging.getLogger(__name__)

# In one event: whoever writes them out holds no more at once.
MAX_SCORES = 512

OnEvent = Callable[[Event], None]
Delivery = tuple[OnEvent, Event]


class Results:
    """Events are appended to deliveries, for the loop to deliver outside the lock."""

    def __init__(
        self,
        scheduler: Scheduler,
        adapters: AdapterStore,
        counters: Counters,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self._scheduler = scheduler
        self._adapters = adapters
        self._counters = counters
        self._eos_token_ids = eos_token_ids

    def take(self, outcome: Outcome, deliveries: list[Delivery]) -> None:
        """All that a step computed and drew, but for requests that have ended meanwhile."""
        self._count(outcome)
        for scored in outcome.scored:
            if not scored.sequence.is_ended:
                self._take_scores(scored, deliveries)
        for work, result in outcome.results:
            if work.sequence.is_ended:
                continue
            if result is None:
                self._scheduler.computed(work)
            elif result.error is not None:
                self.end(work.sequence, failed(work.sequence, result.error), deliveries)
            elif result.is_too_wide:
                work.sequence.draws_wide = True
                self._scheduler.take_back(work)
            elif result.token_id is not None:
                self._scheduler.computed(work)
                self._take_token(work.sequence, result.token_id, result, deliveries)

    def fail(self, works: Iterable[Work], deliveries: list[Delivery]) -> None:
        """Every request of a forward that failed ends."""
        error = EngineError(ErrorCode.INTERNAL, "the engine failed on this batch")
        for work in works:
            if not work.sequence.is_ended:
                self.end(work.sequence, failed(work.sequence, error), deliveries)

    def end(self, sequence: Sequence, event: Event, deliveries: list[Delivery]) -> None:
        """The one place where a request ends."""
        self._adapters.drop(self._scheduler.finish(sequence))
        self._counters.count_end(event, sequence)
        deliveries.append((sequence.on_event, event))

    def _count(self, outcome: Outcome) -> None:
        work = [(w.sequence, w.num_tokens) for w in outcome.plan.work]
        with_adapters = [one for one in work if one[0].digest is not None]
        self._counters.count_step(outcome.step_ms, outcome.lora_ms, with_adapters, outcome.path)
        self._counters.count_batch(work)

    def _take_scores(self, scored: Scored, deliveries: list[Delivery]) -> None:
        sequence = scored.sequence
        if scored.logprobs is None:
            message = "the model's output on the prompt is not finite"
            error = EngineError(ErrorCode.NON_FINITE_LOGITS, message)
            self.end(sequence, failed(sequence, error), deliveries)
            return
        # Of a preempted one, what was on its way then comes twice.
        news = scored.logprobs[sequence.num_scored - scored.first :]
        sequence.num_scored += len(news)
        for start in range(0, len(news), MAX_SCORES):
            event = PromptLogprobs(sequence.request_id, news[start : start + MAX_SCORES])
            deliveries.append((sequence.on_event, event))

    def _take_token(
        self, sequence: Sequence, token_id: int, result: Sampled, deliveries: list[Delivery]
    ) -> None:
        sequence.take(token_id)
        if sequence.request.sampling.max_tokens == 0:
            # It asked for its prompt's scores alone.
            self.end(sequence, Finished(sequence.request_id, "length"), deliveries)
            return
        self._counters.num_output_tokens += 1
        event = Token(sequence.request_id, token_id, sequence.num_cached, result.logprobs)
        deliveries.append((sequence.on_event, event))
        reason = sequence.finish_reason(self._eos_token_ids)
        if reason is not None:
            self.end(sequence, Finished(sequence.request_id, reason), deliveries)


def failed(sequence: Sequence, error: EngineError) -> Failed:
    return Failed(sequence.request_id, error.code, error.message, error.param)


def deliver(on_event: OnEvent, event: Event) -> None:
    try:
        on_event(event)
    except Exception:
        logger.exception("a listener failed on %s", type(event).__name__)
