"""Our own engine (ARCHITECTURE.md, Replica HTTP): every answer proves which digest it used."""

from collections.abc import Sequence
from typing import Any

from adapters.dialects.dialect import Ability, Answer, Call, Dialect, ReplicaError, openai_error

# The replica looked at the bytes and refused them: asking again changes nothing.
_FINAL_STATUSES = frozenset({400, 409})


def read_state(answers: Sequence[Answer]) -> dict[str, Any]:
    (answer,) = answers
    state = answer.json()
    if answer.status != 200 or not isinstance(state, dict):
        raise ReplicaError(f"/state answered {answer.reason()}")
    if not isinstance(state.get("adapters"), list):
        raise ReplicaError("/state answered without adapters")
    return state


def load(digest: str, path: str, is_pinned: bool) -> Call:
    body = {"lora_name": digest, "lora_path": path, "pinned": is_pinned}
    return Call("POST", "/load_lora_adapter", body)


def read_load(answer: Answer, digest: str, path: str) -> None:
    if answer.status != 200:
        raise ReplicaError(_message(answer), answer.status in _FINAL_STATUSES)
    found = (answer.json() or {}).get("digest")
    if found != digest:
        # The bytes on the replica's disk are not those that were published.
        raise ReplicaError(f"loaded {str(found)[:64]}, expected {digest}")


def unload(digest: str) -> Call:
    return Call("POST", "/unload_lora_adapter", {"lora_name": digest})


def read_unload(answer: Answer) -> None:
    if answer.status not in (200, 404):
        raise ReplicaError(_message(answer))


def _message(answer: Answer) -> str:
    message = (openai_error(answer.raw) or {}).get("message")
    return str(message or answer.reason())[:1000]


def request(body: dict[str, Any], base: str, digest: str | None) -> dict[str, Any]:
    return body | {"model": digest or base}


def used(chunk: dict[str, Any], asked: str) -> object:
    return chunk.get("system_fingerprint")


GRAFTHOUSE = Dialect(
    name="grafthouse",
    abilities=frozenset(Ability),
    state_calls=(Call("GET", "/state"),),
    read_state=read_state,
    load=load,
    read_load=read_load,
    unload=unload,
    read_unload=read_unload,
    request=request,
    used=used,
    read_error=openai_error,
)
