"""The sequences of one HTTP request: submitted together, read as deltas, aborted together."""

import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from inference.errors import EngineError, ErrorCode
from inference.metrics import FrontMetrics, Timing
from inference.request import (
    Aborted,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    PromptLogprobs,
    SamplingParams,
    Token,
)
from inference.server.bridge import Bridge, Posted, ServingEngine
from inference.server.choice import Choice, ChoiceRules, Delta
from inference.server.echo import Echo
from inference.server.share import Share

Step = list[tuple[Choice, Delta]]
Outcome = Literal["running", "finished", "aborted", "failed"]


@dataclass(frozen=True)
class Plan:
    """prompts: token ids; prompt_field: where they came from. samplings: one for each choice of a
    prompt, so n = len(samplings). echo: of a prompt that is scored.
    """

    prompts: tuple[tuple[int, ...], ...]
    samplings: tuple[SamplingParams, ...]
    rules: ChoiceRules
    digest: str | None
    cache_salt: str
    prompt_field: str
    echo: Callable[[int], Echo] | None = None


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Generation:
    """close() must be called, whatever ended the request: it aborts what still runs.

    outcome: of all its sequences together; "running" until it is closed, unless one fails.
    """

    def __init__(
        self,
        plan: Plan,
        share: Share,
        engine: ServingEngine,
        bridge: Bridge,
        metrics: FrontMetrics,
    ) -> None:
        self._plan = plan
        self._share = share
        self._engine = engine
        self._bridge = bridge
        self._metrics = metrics
        self._mailbox = bridge.open()
        self.outcome: Outcome = "running"
        num_choices = len(plan.prompts) * len(plan.samplings)
        self.choices = [
            Choice(index, index // len(plan.samplings), plan.rules) for index in range(num_choices)
        ]
        # Ids are ours: two clients that send one request id never meet.
        self._request_ids = [uuid.uuid4().hex for _ in self.choices]
        self._echoes = (
            {} if plan.echo is None else {c.index: plan.echo(c.prompt) for c in self.choices}
        )
        self._running: set[int] = set()
        self._timing = Timing(time.perf_counter(), num_choices)

    def submit(self) -> None:
        """Raises EngineError when the engine refuses at once; then nothing runs."""
        for choice in self.choices:
            sampling = self._plan.samplings[choice.index % len(self._plan.samplings)]
            if sampling.max_tokens == 0 and sampling.num_prompt_logprobs is None:
                self._running.add(choice.index)
                self._mailbox.put(choice.index, Finished("", "length"))
                continue
            request = GenerateRequest(
                request_id=self._request_ids[choice.index],
                token_ids=self._plan.prompts[choice.prompt],
                sampling=sampling,
                digest=self._plan.digest,
                cache_salt=self._plan.cache_salt,
                tenant=self._share.tenant,
                weight=self._share.weight,
            )
            self._engine.submit(request, partial(self._bridge.post, self._mailbox, choice.index))
            self._running.add(choice.index)

    async def steps(self) -> AsyncIterator[Step]:
        """What came together is yielded together; ends after each choice's last delta.

        Raises EngineError when any sequence fails.
        """
        while self._running:
            step, error = self._take_in(await self._mailbox.take())
            if step:
                yield step
            if error is not None:
                self.outcome = "failed"
                raise error

    def _take_in(self, posted: list[Posted]) -> tuple[Step, EngineError | None]:
        """Up to the first failure: what came before it still reaches the client."""
        now_s = time.perf_counter()
        step: Step = []
        try:
            for number, event in posted:
                if isinstance(event, EngineError):
                    return step, self._refusal(event)
                if number in self._running:
                    deltas = (self._echo(number, event), self._apply(number, event, now_s))
                    step += [(self.choices[number], delta) for delta in deltas if delta is not None]
        except EngineError as error:
            return step, error
        return step, None

    def close(self) -> None:
        self._bridge.close(self._mailbox)
        for number in sorted(self._running):
            self._engine.abort(self._request_ids[number])
        self._running.clear()
        if self.outcome == "running":
            is_whole = all(choice.finish_reason for choice in self.choices)
            self.outcome = "finished" if is_whole else "aborted"
        usage = self.usage
        self._metrics.observe_tokens(
            usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, self._timing
        )

    @property
    def digest(self) -> str | None:
        """Of the adapter version that was asked for; None for the base."""
        return self._plan.digest

    @property
    def usage(self) -> Usage:
        """Prompts count once, whatever n is; completion tokens of all choices."""
        firsts = self.choices[:: len(self._plan.samplings)]
        return Usage(
            prompt_tokens=sum(map(len, self._plan.prompts)),
            completion_tokens=sum(choice.num_tokens for choice in self.choices),
            cached_tokens=sum(choice.num_cached_tokens for choice in firsts),
        )

    def _refusal(self, error: EngineError) -> EngineError:
        """The engine knows a prompt only, a client the field that it filled."""
        if error.param != "prompt":
            return error
        return EngineError(error.code, error.message, self._plan.prompt_field)

    def _echo(self, number: int, event: Event) -> Delta | None:
        """What is shown of the prompt before the answer goes on."""
        echo = self._echoes.get(number)
        if echo is None or isinstance(event, Failed | Aborted):
            return None
        return echo.take(event.logprobs) if isinstance(event, PromptLogprobs) else echo.rest()

    def _apply(self, number: int, event: Event, now_s: float) -> Delta | None:
        if isinstance(event, PromptLogprobs):
            return None
        choice = self.choices[number]
        if isinstance(event, Token):
            self._timing.token(number, now_s)
            delta = choice.take(event)
            if delta.finish_reason is not None:
                self._engine.abort(self._request_ids[number])
                self._running.discard(number)
            return delta
        self._running.discard(number)
        if isinstance(event, Finished):
            return choice.end(event.reason)
        raise _failure(event)


def _failure(event: Failed | Aborted) -> EngineError:
    if isinstance(event, Failed):
        return EngineError(event.code, event.message, event.param)
    return EngineError(ErrorCode.OVERLOADED, "The server stopped this request; try again.")
