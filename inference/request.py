"""What the HTTP front hands to the engine, and what comes back: the contract between the two.

Every submitted request ends in exactly one terminal event: Finished, Aborted or Failed.
"""

from dataclasses import dataclass, field
from typing import Literal

from inference.errors import ErrorCode


@dataclass(frozen=True)
class Constraint:
    """What the whole answer must be. text: the schema (JSON), the regular expression or the grammar
    (EBNF as in llama.cpp's GBNF, from the rule "root"); empty for any JSON object.

    param: the field that asked. Objects of a schema that names their properties have no others,
    unless its additionalProperties says so.
    """

    kind: Literal["json_object", "json_schema", "regex", "grammar"]
    text: str = ""
    param: str = "response_format"

    @property
    def key(self) -> tuple[str, str]:
        """What its compilation depends on."""
        return self.kind, self.text


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens. temperature 0 is greedy. Already validated by the front.

    max_tokens may be 0 where the prompt is scored: nothing else is wanted then.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    # Number of most likely alternatives to report beside the chosen token; None: no logprobs.
    num_logprobs: int | None = None
    # The same for the prompt's own tokens; None: it is not scored.
    num_prompt_logprobs: int | None = None
    # An answer that is complete ends, also under ignore_eos and below min_tokens.
    constraint: Constraint | None = None


@dataclass(frozen=True)
class GenerateRequest:
    """One sequence to continue. request_id is ours, never a client's.

    digest: the adapter version to apply, None for the base model.
    cache_salt: namespace of the prefix cache beside the digest (the tenant, behind the gateway).
    tenant: whose turn it takes among those that wait; weight: that tenant's share beside others'.
    """

    request_id: str
    token_ids: tuple[int, ...]
    sampling: SamplingParams
    digest: str | None = None
    cache_salt: str = ""
    tenant: str = ""
    weight: float = 1.0


@dataclass(frozen=True)
class TokenLogprobs:
    logprob: float
    # (token id, logprob), most likely first.
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class PromptLogprobs:
    """The prompt's next tokens, scored: in order, from its second on; nothing stands before the
    first. All of them come before the first Token.
    """

    request_id: str
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True)
class Token:
    """One generated token. num_cached_tokens: prompt tokens that came from the prefix cache."""

    request_id: str
    token_id: int
    num_cached_tokens: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True)
class Finished:
    """reason "stop": the last Token is an end-of-sequence or stop token; "length": a limit."""

    request_id: str
    reason: Literal["stop", "length"]


@dataclass(frozen=True)
class Aborted:
    request_id: str


@dataclass(frozen=True)
class Failed:
    """param: the request's field at fault, if any."""

    request_id: str
    code: ErrorCode
    message: str
    param: str | None = None


Event = PromptLogprobs | Token | Finished | Aborted | Failed


@dataclass(frozen=True)
class AdapterInfo:
    """One registered adapter as /state reports it; tier: the nearest place where all of its weights
    are; is_moving: they are on their way to a nearer one.
    """

    name: str
    digest: str
    rank: int
    tier: Literal["device", "host", "disk"]
    num_leases: int = 0
    pinned: bool = False
    is_moving: bool = False


@dataclass(frozen=True)
class EngineState:
    """A snapshot for /state: what the router and the placement reconciler decide by."""

    model: str
    num_waiting: int
    num_running: int
    num_kv_blocks: int
    num_free_kv_blocks: int
    max_model_len: int
    max_lora_rank: int
    max_loras_per_batch: int
    adapters: tuple[AdapterInfo, ...] = field(default=())
