"""The engine's own door: what is let in here cannot harm a neighbour in the batch."""

import math

from inference.errors import EngineError, ErrorCode
from inference.request import GenerateRequest, SamplingParams

MIN_WEIGHT, MAX_WEIGHT = 1e-3, 1e3


def check_request(request: GenerateRequest, vocab_size: int, max_model_len: int) -> None:
    """Raises EngineError INVALID_REQUEST or CONTEXT_LENGTH_EXCEEDED, with the field at fault."""
    if not request.token_ids:
        raise _invalid("the prompt has no tokens", "prompt")
    least = min(request.sampling.max_tokens, 1)
    if len(request.token_ids) + least > max_model_len:
        message = (
            f"the prompt has {len(request.token_ids)} tokens; "
            f"the context holds {max_model_len} with at least {least} generated"
        )
        raise EngineError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, message, "prompt")
    _check_ids(request.token_ids, vocab_size, "prompt")
    # Also true for NaN. Beyond these bounds counters would lose what one token adds.
    if not MIN_WEIGHT <= request.weight <= MAX_WEIGHT:
        limits = f"from {MIN_WEIGHT} to {MAX_WEIGHT}"
        raise _invalid(f"weight must be {limits}, found {request.weight}", "weight")
    _check_sampling(request.sampling, vocab_size)


def _check_sampling(params: SamplingParams, vocab_size: int) -> None:
    _check_ids(params.stop_token_ids, vocab_size, "stop_token_ids")
    _check_ids(tuple(token_id for token_id, _ in params.logit_bias), vocab_size, "logit_bias")
    ranges = {
        "max_tokens": (params.max_tokens, int(params.num_prompt_logprobs is None), math.inf),
        "min_tokens": (params.min_tokens, 0, math.inf),
        "temperature": (params.temperature, 0, 100),
        "top_p": (params.top_p, 0, 1),
        "min_p": (params.min_p, 0, 1),
        "presence_penalty": (params.presence_penalty, -2, 2),
        "frequency_penalty": (params.frequency_penalty, -2, 2),
        "repetition_penalty": (params.repetition_penalty, 1e-3, 1e3),
        "num_logprobs": (params.num_logprobs or 0, 0, vocab_size),
        "num_prompt_logprobs": (params.num_prompt_logprobs or 0, 0, vocab_size),
    }
    for name, (value, low, high) in ranges.items():
        # Also true for NaN.
        if not low <= value <= high:
            raise _invalid(f"{name} must be from {low} to {high}, found {value}", name)
    if not all(math.isfinite(bias) for _, bias in params.logit_bias):
        raise _invalid("logit_bias must be finite", "logit_bias")


def _check_ids(ids: tuple[int, ...], vocab_size: int, param: str) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        bad = min(ids) if min(ids) < 0 else max(ids)
        raise _invalid(f"token id {bad} is outside the vocabulary of {vocab_size}", param)


def _invalid(message: str, param: str) -> EngineError:
    return EngineError(ErrorCode.INVALID_REQUEST, message, param)
