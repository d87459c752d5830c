"""What a dialect is: calls to make and answers to read, as pure functions."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

_DIGEST = re.compile(r"[0-9a-f]{64}")
MAX_REASON_CHARS = 1000


class Ability(StrEnum):
    """What not every engine can. Whoever needs one asks for it by name."""

    # Says with every answer which bytes it used; others only echo the name they were asked for.
    REPORTS_DIGEST = "reports digest"
    # Its state has num_running and num_waiting; others' load is what this process has sent them.
    REPORTS_LOAD = "reports load"
    # Renders a request by a chat template that it brings, and by no more tokens than it may.
    CHAT_TEMPLATE = "chat template"
    # Pins, unpins and prefetches what it holds, and tells where each adapter is.
    KEEP = "keep near"
    # Log-probabilities of a prompt's own tokens, given as ids, and nothing generated.
    SCORE = "score"
    TOKENIZE = "tokenize"
    # Takes turns by X-Tenant and X-Tenant-Weight.
    TENANT_TURNS = "X-Tenant"
    # Knows afterwards what a request came to, by the id that it was sent with.
    USAGE = "usage"
    # Puts as many tokens into one chunk of a stream as it is asked to.
    STREAM_INTERVAL = "stream interval"


class ReplicaError(Exception):
    """is_final: the answer will not change by asking again."""

    def __init__(self, message: str, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Answer:
    status: int
    raw: bytes

    def json(self) -> Any:
        """None for what is not JSON: a proxy's page, an engine's plain text."""
        try:
            return json.loads(self.raw)
        except ValueError:
            return None

    def reason(self) -> str:
        """The error's text, in whatever shape it came."""
        found = self.json()
        for name in ("error", "detail", "message", "error_message"):
            if isinstance(found, dict) and found.get(name):
                found = found[name]
        text = found if isinstance(found, str) else self.raw.decode(errors="replace")
        return f"status {self.status}: {text.strip() or 'empty'}"[:MAX_REASON_CHARS]


@dataclass(frozen=True)
class Dialect:
    """state_calls are asked in turn, and read together.

    read_state: EngineState as JSON, as far as this engine tells; an adapter's "digest" is "" when
    it is not one of ours. load: of a digest and its folder, pinned or not where KEEP is an ability.
    read_load, read_unload: nothing, or a ReplicaError. request: the body for
    this engine, of a digest or (None) the base. used: the fingerprint of what a chunk shows to have
    served. read_error: OpenAI's error object with our codes, of a refusal's body or a frame's.
    """

    name: str
    abilities: frozenset[Ability]
    state_calls: tuple[Call, ...]
    read_state: Callable[[Sequence[Answer]], dict[str, Any]]
    load: Callable[[str, str, bool], Call]
    read_load: Callable[[Answer, str, str], None]
    unload: Callable[[str], Call]
    read_unload: Callable[[Answer], None]
    request: Callable[[dict[str, Any], str, str | None], dict[str, Any]]
    used: Callable[[dict[str, Any], str], object]
    read_error: Callable[[bytes], dict[str, Any] | None]


def is_digest(name: object) -> bool:
    return isinstance(name, str) and _DIGEST.fullmatch(name) is not None


HEALTH_AND_MODELS = (Call("GET", "/health"), Call("GET", "/v1/models"))


def read_health_and_models(answers: Sequence[Answer]) -> dict[str, Any]:
    """The list may be the front's and outlive the engine; /health asks the engine."""
    health, models = answers
    if health.status != 200:
        raise ReplicaError(f"/health answered {health.reason()}")
    return listed_state(models)


def listed_state(answer: Answer) -> dict[str, Any]:
    """EngineState, as far as OpenAI's list of models tells: adapters are those with a parent.

    An adapter is taken for ours when its name is a digest and its folder is that digest's: the
    name alone could have been given to other bytes.
    """
    found = answer.json()
    cards = found.get("data") if isinstance(found, dict) else None
    if answer.status != 200 or not isinstance(cards, list):
        raise ReplicaError(f"/v1/models answered {answer.reason()}")
    cards = [card for card in cards if isinstance(card, dict) and isinstance(card.get("id"), str)]
    bases = [card for card in cards if not card.get("parent")]
    if not bases:
        raise ReplicaError("/v1/models lists no base model")
    adapters = [_adapter(card) for card in cards if card.get("parent")]
    max_model_len = bases[0].get("max_model_len") or 0
    return {"model": bases[0]["id"], "max_model_len": max_model_len, "adapters": adapters}


def _adapter(card: dict[str, Any]) -> dict[str, Any]:
    name, root = card["id"], str(card.get("root") or "")
    is_ours = is_digest(name) and PurePosixPath(root).name == name
    return {"name": name, "digest": name if is_ours else "", "path": root}


def echoed(chunk: dict[str, Any], asked: str) -> object:
    """Of engines that name what served only by the name they were asked for."""
    served = chunk.get("model")
    if served != asked:
        return served
    # A base's name may hold colons and slashes, a digest holds neither.
    name = asked.rpartition(":")[2]
    return name if is_digest(name) else "base"


def openai_error(raw: bytes) -> dict[str, Any] | None:
    """{"error": {…}}, and the flat shape of older servers."""
    found = Answer(0, raw).json()
    if not isinstance(found, dict):
        return None
    error = found.get("error")
    if isinstance(error, dict):
        return error
    return found if found.get("object") == "error" else None


def coded_error(raw: bytes, codes: Mapping[str, str]) -> dict[str, Any] | None:
    """openai_error, with our code where the message holds one of the texts: theirs is a status."""
    error = openai_error(raw)
    if error is None:
        return None
    message = str(error.get("message") or "")
    code = next((code for text, code in codes.items() if text in message), None)
    return error | {"code": code} if code else error
