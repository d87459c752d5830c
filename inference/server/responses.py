"""Answers in OpenAI's shapes, as plain dicts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inference.request import TokenLogprobs
from inference.server.choice import ShownToken
from inference.server.generation import Usage
from inference.server.vocabulary import Vocabulary

Json = dict[str, Any]
# JSON has no -Infinity; OpenAI's own stand-in for "never".
LOWEST_LOGPROB = -9999.0


@dataclass(frozen=True)
class Envelope:
    """What every object of one answer shares. fingerprint: the adapter's digest, or "base"."""

    id: str
    created: int
    model: str
    fingerprint: str

    def wrap(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


def usage_json(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)


def _token_json(vocabulary: Vocabulary, token_id: int, logprob: float) -> Json:
    raw = vocabulary.raw_bytes(token_id)
    return {
        "token": raw.decode("utf-8", "replace"),
        "logprob": _finite(logprob),
        "bytes": list(raw),
    }


def chat_logprobs(vocabulary: Vocabulary, tokens: Sequence[ShownToken]) -> Json:
    content = [
        _token_json(vocabulary, shown.token_id, shown.logprobs.logprob)
        | {"top_logprobs": [_token_json(vocabulary, *pair) for pair in shown.logprobs.top]}
        for shown in tokens
        if shown.logprobs is not None
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    vocabulary: Vocabulary, tokens: Sequence[ShownToken], first_offset: int
) -> Json:
    """Four arrays of one length; top_logprobs has the chosen token too, as OpenAI's has. null for
    the first token of a prompt, before which there is nothing.
    """
    return {
        "tokens": [_name(vocabulary, shown.token_id) for shown in tokens],
        "token_logprobs": [shown.logprobs and _finite(shown.logprobs.logprob) for shown in tokens],
        "top_logprobs": [
            shown.logprobs and _top_by_name(vocabulary, shown.token_id, shown.logprobs)
            for shown in tokens
        ],
        "text_offset": [first_offset + shown.offset for shown in tokens],
    }


def _top_by_name(vocabulary: Vocabulary, token_id: int, found: TokenLogprobs) -> dict[str, float]:
    """By likelihood; where two tokens have one name (broken characters), the likelier stays."""
    pairs = [*found.top, (token_id, found.logprob)]
    named: dict[str, float] = {}
    for one, logprob in pairs:
        named.setdefault(_name(vocabulary, one), _finite(logprob))
    return named


def _name(vocabulary: Vocabulary, token_id: int) -> str:
    """Bytes that are no character alone are named as OpenAI names them: bytes:\\xe4\\xbd."""
    raw = vocabulary.raw_bytes(token_id)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
