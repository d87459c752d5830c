"""SGLang's server, started with --enable-lora (and one data-parallel rank: it loads with one only).

An adapter is asked for as "base:adapter"; the answer's `model` is that text again, whatever
served. What makes it safe: a name that it never loaded is a 400 there, and only a name whose folder
it lists as ours is asked for. A bare unknown name is answered by the base, so none is ever sent.
"""

from functools import partial
from typing import Any

from adapters.dialects.dialect import (
    HEALTH_AND_MODELS,
    Ability,
    Answer,
    Call,
    Dialect,
    ReplicaError,
    coded_error,
    echoed,
    read_health_and_models,
)

CODES = {
    "has never been loaded": "model_not_found",
    "are not loaded": "model_not_found",
    "Failed to implicitly load": "model_not_found",
    "maximum context length": "context_length_exceeded",
    "longer than the model's context length": "context_length_exceeded",
}


def load(digest: str, path: str, is_pinned: bool) -> Call:
    # What was pinned here could not be unpinned.
    body = {"lora_name": digest, "lora_path": path, "pinned": False}
    return Call("POST", "/load_lora_adapter", body)


def read_load(answer: Answer, digest: str, path: str) -> None:
    """Every failure is a 400 with a text: only the known passing ones are tried again soon."""
    found = answer.json()
    if not isinstance(found, dict) or "success" not in found:
        raise ReplicaError(answer.reason(), is_final=answer.status == 404)
    message = str(found.get("error_message") or "")[:1000]
    if not found["success"] and "already loaded" not in message:
        raise ReplicaError(message or answer.reason(), is_final="evict" not in message)
    held = found.get("loaded_adapters")
    # Beyond --max-loaded-loras it evicts at once; and a name may stand for another folder.
    if isinstance(held, dict) and _path(held.get(digest)) not in ("", path):
        raise ReplicaError(f"{digest} is another folder there: {held[digest]}"[:1000], True)
    if found["success"] and isinstance(held, dict) and digest not in held:
        raise ReplicaError("loaded and evicted at once: raise --max-loaded-loras")


def _path(ref: object) -> str:
    """Its folder: text, or in other releases an object with it."""
    return str((ref.get("lora_path") if isinstance(ref, dict) else ref) or "")


def unload(digest: str) -> Call:
    return Call("POST", "/unload_lora_adapter", {"lora_name": digest})


def read_unload(answer: Answer) -> None:
    found = answer.json()
    is_known = isinstance(found, dict) and "success" in found
    if not is_known:
        raise ReplicaError(answer.reason())
    message = str(found.get("error_message") or "")
    if not found["success"] and "does not exist" not in message:
        raise ReplicaError(message[:1000] or answer.reason())


def request(body: dict[str, Any], base: str, digest: str | None) -> dict[str, Any]:
    return body | {"model": f"{base}:{digest}" if digest else base}


SGLANG = Dialect(
    name="sglang",
    abilities=frozenset[Ability](),
    state_calls=HEALTH_AND_MODELS,
    read_state=read_health_and_models,
    load=load,
    read_load=read_load,
    unload=unload,
    read_unload=read_unload,
    request=request,
    used=echoed,
    read_error=partial(coded_error, codes=CODES),
)
