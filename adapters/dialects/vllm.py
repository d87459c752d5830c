"""vLLM's OpenAI server, started with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True.

It answers loads in plain text, reports no digest and no load here, and cannot pin over HTTP. What
it names as `model` in an answer is the adapter that it looked up, so that is what is checked. More
adapters than --max-cpu-loras stay listed and are read again from their folder when asked for.
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
    openai_error,
    read_health_and_models,
)

CODES = {
    "does not exist": "model_not_found",
    "maximum context length": "context_length_exceeded",
    "maximum model length": "context_length_exceeded",
}
CLOSED = "Not Found: start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and --enable-lora"


def load(digest: str, path: str, is_pinned: bool) -> Call:
    # In place: a name that stands for another folder there becomes ours. Older ones ignore it.
    body = {"lora_name": digest, "lora_path": path, "load_inplace": True}
    return Call("POST", "/v1/load_lora_adapter", body)


def read_load(answer: Answer, digest: str, path: str) -> None:
    """The same name again is a 400 of older ones; that its folder is ours shows in the state."""
    if answer.status == 200 or "already been loaded" in _message(answer):
        return
    raise ReplicaError(_message(answer), is_final=answer.status == 400)


def unload(digest: str) -> Call:
    return Call("POST", "/v1/unload_lora_adapter", {"lora_name": digest})


def read_unload(answer: Answer) -> None:
    is_absent = answer.status == 404 and "cannot be found" in _message(answer)
    if answer.status != 200 and not is_absent:
        raise ReplicaError(_message(answer))


def _message(answer: Answer) -> str:
    """A route that is not there is FastAPI's 404, an adapter that is not there vLLM's own."""
    error = openai_error(answer.raw)
    if error is None:
        return CLOSED if answer.status == 404 else answer.reason()
    return str(error.get("message"))[:1000]


def request(body: dict[str, Any], base: str, digest: str | None) -> dict[str, Any]:
    return body | {"model": digest or base}


VLLM = Dialect(
    name="vllm",
    abilities=frozenset({Ability.TOKENIZE}),
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
