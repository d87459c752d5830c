"""An engine that answers with given tokens: forces exact token sequences through the real front.

The wire, the front and the sockets are real; only what the model would say is given.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from inference.errors import EngineError, ErrorCode
from inference.model_spec import ModelSpec
from inference.request import (
    Aborted,
    AdapterInfo,
    EngineState,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Token,
    TokenLogprobs,
)

OnEvent = Callable[[Event], None]
DIGEST = "d" * 64


@dataclass
class ScriptedEngine:
    """Every request gets tokens, then Finished(reason) (or failure). delay_s: before each token.

    scripts: token lists by order of submission, where the choices must differ.
    """

    spec: ModelSpec
    tokens: Sequence[int] = ()
    reason: str = "length"
    failure: Failed | None = None
    delay_s: float = 0.0
    num_cached: int = 0
    logprob: float = -0.5
    scripts: list[Sequence[int]] = field(default_factory=list)
    requests: list[GenerateRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    max_model_len: int = 512

    def submit(self, request: GenerateRequest, on_event: OnEvent) -> None:
        tokens = self.scripts[len(self.requests)] if self.scripts else self.tokens
        self.requests.append(request)
        thread = threading.Thread(target=self._run, args=(request, tokens, on_event), daemon=True)
        self.threads.append(thread)
        thread.start()

    def join(self) -> None:
        """Until the last event is posted: the event loop must outlive the engine."""
        self.aborted += [request.request_id for request in self.requests]
        for thread in self.threads:
            thread.join()

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def load_adapter(self, name: str, path: str, pinned: bool = False) -> AdapterInfo:
        raise EngineError(ErrorCode.INVALID_ADAPTER, "none here")

    def unload_adapter(self, name: str) -> None:
        raise EngineError(ErrorCode.MODEL_NOT_FOUND, "none here")

    def resolve_adapter(self, name: str) -> str:
        if name == "graft":
            return DIGEST
        raise EngineError(ErrorCode.MODEL_NOT_FOUND, "none here")

    def state(self) -> EngineState:
        return EngineState("tiny", 0, 0, 8, 8, self.max_model_len, 64, 8)

    def _run(self, request: GenerateRequest, tokens: Sequence[int], on_event: OnEvent) -> None:
        name = request.request_id
        for token_id in tokens[: request.sampling.max_tokens]:
            time.sleep(self.delay_s)
            if name in self.aborted:
                on_event(Aborted(name))
                return
            on_event(Token(name, token_id, self.num_cached, self._logprobs(request, token_id)))
        if self.failure is not None:
            on_event(Failed(name, self.failure.code, self.failure.message))
        else:
            on_event(Finished(name, "stop" if self.reason == "stop" else "length"))

    def _logprobs(self, request: GenerateRequest, token_id: int) -> TokenLogprobs | None:
        num_top = request.sampling.num_logprobs
        if num_top is None:
            return None
        top = tuple((token_id + rank, self.logprob - rank) for rank in range(num_top))
        return TokenLogprobs(self.logprob, top)
