"""The sampling fields that chat and completions share → SamplingParams. Limits are in README.md."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inference.request import Constraint, SamplingParams
from inference.server.constraint import parse_constraint
from inference.server.fields import Fields, invalid, is_integer, wrong_type

MAX_CHOICES = 16
# 16 of a request, and 4 of its version's serving profile.
MAX_STOPS = 20
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIASES = 1024
MAX_TOKENS = 1 << 31

SAMPLING_FIELDS = frozenset(
    (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "min_tokens",
        "max_tokens",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "n",
    )
)


@dataclass(frozen=True)
class Sampling:
    """build: (max_tokens, number of the choice) → SamplingParams. n, stops: the front's part."""

    n: int
    stops: tuple[str, ...]
    min_tokens: int
    build: Callable[[int, int], SamplingParams]


def parse_sampling(
    body: Fields,
    vocab_size: int,
    num_logprobs: int | None,
    scores_prompt: bool = False,
    call: Constraint | None = None,
) -> Sampling:
    """call: what the answer must be instead of the text that the body may ask for.

    Raises EngineError naming the field at fault.
    """
    seed = body.integer("seed", None, -(1 << 63), (1 << 63) - 1)
    min_tokens = body.integer("min_tokens", 0, 0, MAX_TOKENS)
    num_prompt_logprobs = num_logprobs if scores_prompt else None
    shared: dict[str, Any] = _shared(body, vocab_size, call) | {
        "min_tokens": min_tokens,
        "num_logprobs": num_logprobs,
        "num_prompt_logprobs": num_prompt_logprobs,
    }

    def build(max_tokens: int, choice: int) -> SamplingParams:
        if max_tokens == 0:
            # Nothing is drawn: only the prompt is scored, if anything is done.
            return SamplingParams(0, 0.0, num_prompt_logprobs=num_prompt_logprobs)
        return SamplingParams(max_tokens=max_tokens, seed=_seed_of(seed, choice), **shared)

    return Sampling(body.integer("n", 1, 1, MAX_CHOICES), parse_stops(body), min_tokens, build)


def _shared(body: Fields, vocab_size: int, call: Constraint | None) -> dict[str, Any]:
    """What holds for every choice, under the names of SamplingParams."""
    text = parse_constraint(body)
    constraint = call or text
    return _shares(body) | {
        "temperature": body.number("temperature", 1.0, 0.0, 2.0),
        "min_p": body.number("min_p", 0.0, 0.0, 1.0),
        "stop_token_ids": _stop_token_ids(body, vocab_size),
        # What a constraint completes ends with an end token, which is then no text.
        "ignore_eos": body.boolean("ignore_eos", False) and constraint is None,
        "presence_penalty": body.number("presence_penalty", 0.0, -2.0, 2.0),
        "frequency_penalty": body.number("frequency_penalty", 0.0, -2.0, 2.0),
        "repetition_penalty": body.number("repetition_penalty", 1.0, 0.01, 10.0),
        "logit_bias": _logit_bias(body, vocab_size),
        "constraint": constraint,
    }


def _seed_of(seed: int | None, choice: int) -> int | None:
    """Choices of one request must differ, and do so again with the same seed. Never negative."""
    return None if seed is None else (seed + choice) % (1 << 63)


def _shares(body: Fields) -> dict[str, Any]:
    top_p = body.number("top_p", 1.0, 0.0, 1.0)
    top_k = body.integer("top_k", 0, -1, MAX_TOKENS)
    if top_p == 0.0:
        # OpenAI allows 0; its limit is the one most likely token.
        return {"top_p": 1.0, "top_k": 1}
    return {"top_p": top_p, "top_k": max(top_k, 0)}


def parse_stops(body: Fields) -> tuple[str, ...]:
    value = body.get("stop")
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(stops, list):
        raise wrong_type("stop", "a string or an array of strings", value)
    if len(stops) > MAX_STOPS:
        raise invalid("stop", f"'stop' has {len(stops)} sequences; at most {MAX_STOPS}.")
    for stop in stops:
        if not isinstance(stop, str):
            raise wrong_type("stop", "a string or an array of strings", stop)
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            message = (
                f"A stop sequence must have 1 to {MAX_STOP_CHARS} characters, not {len(stop)}."
            )
            raise invalid("stop", message)
    return tuple(stops)


def token_id(value: object, place: str, vocab_size: int) -> int:
    if not is_integer(value):
        raise wrong_type(place, "an integer token id", value)
    if not 0 <= value < vocab_size:
        message = f"'{place}' has a token id outside the vocabulary (0 to {vocab_size - 1})."
        raise invalid(place, message)
    return value


def _stop_token_ids(body: Fields, vocab_size: int) -> tuple[int, ...]:
    values = body.array("stop_token_ids") or []
    if len(values) > MAX_STOP_TOKEN_IDS:
        message = f"'stop_token_ids' has {len(values)} entries; at most {MAX_STOP_TOKEN_IDS}."
        raise invalid("stop_token_ids", message)
    return tuple(token_id(value, "stop_token_ids", vocab_size) for value in values)


def _logit_bias(body: Fields, vocab_size: int) -> tuple[tuple[int, float], ...]:
    biases = body.obj("logit_bias")
    if biases is None:
        return ()
    if len(biases.values) > MAX_LOGIT_BIASES:
        message = f"'logit_bias' has {len(biases.values)} entries; at most {MAX_LOGIT_BIASES}."
        raise invalid("logit_bias", message)
    return tuple((_bias_key(key, vocab_size), _bias(biases, key)) for key in biases.values)


def _bias_key(key: str, vocab_size: int) -> int:
    if not (key.isascii() and key.isdecimal() and len(key) < 12):
        raise invalid("logit_bias", f"'logit_bias' has the key {key[:20]!r}, which is no token id.")
    return token_id(int(key), "logit_bias", vocab_size)


def _bias(biases: Fields, key: str) -> float:
    if biases.get(key) is None:
        raise wrong_type(f"logit_bias.{key}", "a number", None)
    return biases.number(key, 0.0, -100.0, 100.0)


def parse_max_tokens(body: Fields, keys: tuple[str, ...], lowest: int) -> int | None:
    """The cap under any of its names; None when not given. Raises EngineError when they differ."""
    found = {key: body.integer(key, None, lowest, MAX_TOKENS) for key in keys}
    given = {key: value for key, value in found.items() if value is not None}
    if len(set(given.values())) > 1:
        message = f"{' and '.join(given)} differ; send one of them."
        raise invalid(keys[-1], message)
    return next(iter(given.values()), None)
