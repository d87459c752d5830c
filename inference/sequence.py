"""One request on its way through the engine: the state that the scheduler owns."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from inference.kv_cache import Namespace
from inference.request import Event, GenerateRequest

if TYPE_CHECKING:
    from inference.grammar import Entry
    from inference.grammar_matcher import Matcher

# Stands for a token that only the device knows yet.
UNKNOWN = -1
NO_LIMIT = 1 << 62


@dataclass(eq=False)
class Sequence:
    """tokens: prompt and output so far; the last may be UNKNOWN. num_computed: how many of them
    have keys and values, or will have by the steps that were launched.

    blocks: the KV blocks held, in order; nodes: the prefix-cache chain of the committed ones.
    num_scored: how many tokens of a prompt that is to be scored are, but for the first.
    slot: the adapter's device slot while leased; lora_start: the first position it applies to, 0
    but for activated LoRA. num_passed: admissions of others while it waited.
    arrival: its place in the order in which sequences came to the engine.
    lora_ms: its share of the time spent in LoRA ops.
    unknown_at: while its last token is UNKNOWN, the place of it among the device's last tokens.
    epoch: rises when steps that were launched no longer count: at its end, when it is preempted,
    when a token is taken back. draws_wide: its tokens are drawn from the whole vocabulary, sorted.
    grammar, matcher: of a constrained one; the matcher comes when the grammar is compiled.
    """

    request: GenerateRequest
    on_event: Callable[[Event], None]
    generator: random.Random
    arrived_s: float
    tokens: list[int] = field(init=False)
    num_computed: int = 0
    num_cached: int = 0
    num_scored: int = 0
    blocks: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    slot: int | None = None
    lora_start: int = 0
    output_counts: Counter[int] = field(default_factory=Counter)
    num_passed: int = 0
    arrival: int = 0
    is_admitted: bool = False
    lora_ms: float = 0.0
    num_preemptions: int = 0
    grammar: "Entry | None" = None
    matcher: "Matcher | None" = None
    max_model_len: int = NO_LIMIT
    unknown_at: int | None = None
    epoch: int = 0
    is_ended: bool = False
    draws_wide: bool = False

    def __post_init__(self) -> None:
        self.tokens = list(self.request.token_ids)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def digest(self) -> str | None:
        return self.request.digest

    @property
    def namespace(self) -> Namespace:
        return Namespace(self.request.digest, self.request.cache_salt, self.lora_start)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - len(self.request.token_ids)

    @property
    def num_pending(self) -> int:
        """Tokens whose keys and values are still to be computed; 1 for a decoding sequence."""
        return len(self.tokens) - self.num_computed

    def unscored(self, start: int, end: int) -> range:
        """Of these positions, those behind which a token of the prompt is still to be scored."""
        if self.request.sampling.num_prompt_logprobs is None:
            return range(0)
        return range(max(start, self.num_scored), min(end, len(self.request.token_ids) - 1))

    @property
    def sharable(self) -> list[int]:
        """The tokens whose keys and values may come from the prefix cache: it has no logits."""
        is_scored = not self.unscored(0, len(self.tokens))
        return self.tokens if is_scored else self.tokens[: self.num_scored + 1]

    def slot_at(self, position: int) -> int:
        """The adapter's slot where it applies, else -1."""
        return -1 if self.slot is None or position < self.lora_start else self.slot

    def slots(self, start: int, end: int) -> list[int]:
        """slot_at each of these positions."""
        num_base = min(max(self.lora_start - start, 0), end - start)
        return [-1] * num_base + [self.slot_at(end - 1)] * (end - start - num_base)

    @property
    def is_complete(self) -> bool:
        """Its last token is on its way, whichever it is: nothing is left to compute."""
        return self.unknown_at is not None and self._is_full

    @property
    def _is_full(self) -> bool:
        max_tokens = self.request.sampling.max_tokens
        return self.num_output >= max_tokens or len(self.tokens) >= self.max_model_len

    def expect(self, place: int) -> None:
        """A token is being drawn; steps may be launched on it before it is known."""
        self.tokens.append(UNKNOWN)
        self.unknown_at = place

    def take(self, token_id: int) -> None:
        """The token that was expected."""
        self.tokens[-1] = token_id
        self.unknown_at = None
        self.output_counts[token_id] += 1
        if self.matcher is not None:
            self.matcher.advance(token_id)

    def take_back(self) -> None:
        """There will be no token where one was expected."""
        self.tokens.pop()
        self.unknown_at = None

    def finish_reason(self, eos_token_ids: tuple[int, ...]) -> Literal["stop", "length"] | None:
        """Whether the last token ends the sequence."""
        params, last = self.request.sampling, self.tokens[-1]
        if last in params.stop_token_ids:
            return "stop"
        # A grammar lets it come only where the answer is complete, and nothing after it.
        if last in eos_token_ids and (not params.ignore_eos or self.matcher is not None):
            return "stop"
        return "length" if self._is_full else None
