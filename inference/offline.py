"""Batches without a server: prompts in, tokens out, on the caller's thread."""

import time
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from inference.errors import EngineError
from inference.request import Event, Failed, GenerateRequest, SamplingParams, Token

if TYPE_CHECKING:
    from inference.engine import Engine

_numbers = count()


def generate(
    engine: "Engine",
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams | Sequence[SamplingParams],
    adapters: Sequence[str | None] | None = None,
) -> list[list[int]]:
    """All prompts at once; adapters: a loaded name for each, None for the base.

    Steps the engine itself: not while run() is at work. Raises EngineError of the first that fails.
    """
    params = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else sampling
    names = [None] * len(prompts) if adapters is None else adapters
    outputs: dict[str, list[int]] = {}
    failed: list[Failed] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Token):
            outputs[event.request_id].append(event.token_id)
        elif isinstance(event, Failed):
            failed.append(event)

    for prompt, chosen, name in zip(prompts, params, names, strict=True):
        digest = None if name is None else engine.resolve_adapter(name)
        request_id = f"offline-{next(_numbers)}"
        outputs[request_id] = []
        engine.submit(GenerateRequest(request_id, tuple(prompt), chosen, digest), on_event)
    _run_to_rest(engine)
    if failed:
        raise EngineError(failed[0].code, failed[0].message, failed[0].param)
    return list(outputs.values())


def _run_to_rest(engine: "Engine") -> None:
    while engine.state().num_waiting or engine.state().num_running:
        if not engine.step():
            # A file is read or a grammar compiled, by threads that need this one's turns.
            time.sleep(0.001)
