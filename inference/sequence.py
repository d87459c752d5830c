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


@dataclass(eq=False)
class Sequence:
    """tokens: prompt and output so far. num_computed: how many of them have keys and values.

    blocks: the KV blocks held, in order; nodes: the prefix-cache chain of the committed ones.
    slot: the adapter's device slot while leased. num_passed: admissions of others while it waited.
    arrival: its place in the order in which sequences came to the engine.
    lora_ms: its share of the time spent in LoRA ops.
    grammar, matcher: of a constrained one; the matcher comes when the grammar is compiled.
    """

    request: GenerateRequest
    on_event: Callable[[Event], None]
    generator: random.Random
    arrived_s: float
    tokens: list[int] = field(init=False)
    num_computed: int = 0
    num_cached: int = 0
    blocks: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    slot: int | None = None
    output_counts: Counter[int] = field(default_factory=Counter)
    num_passed: int = 0
    arrival: int = 0
    is_admitted: bool = False
    lora_ms: float = 0.0
    num_preemptions: int = 0
    grammar: "Entry | None" = None
    matcher: "Matcher | None" = None

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
        return Namespace(self.request.digest, self.request.cache_salt)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - len(self.request.token_ids)

    @property
    def num_pending(self) -> int:
        """Tokens whose keys and values are still to be computed; 1 for a decoding sequence."""
        return len(self.tokens) - self.num_computed

    def append(self, token_id: int) -> None:
        self.tokens.append(token_id)
        self.output_counts[token_id] += 1
        if self.matcher is not None:
            self.matcher.advance(token_id)

    def finish_reason(
        self, eos_token_ids: tuple[int, ...], max_model_len: int
    ) -> Literal["stop", "length"] | None:
        """Whether the last token ends the sequence."""
        params, last = self.request.sampling, self.tokens[-1]
        if last in params.stop_token_ids:
            return "stop"
        # A grammar lets it come only where the answer is complete, and nothing after it.
        if last in eos_token_ids and (not params.ignore_eos or self.matcher is not None):
            return "stop"
        if self.num_output >= params.max_tokens or len(self.tokens) >= max_model_len:
            return "length"
        return None
