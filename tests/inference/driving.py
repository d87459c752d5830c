"""Drives an engine step by step and keeps every event, as the HTTP front would see them."""

import time
from collections import defaultdict
from itertools import count
from pathlib import Path
from typing import Any

from inference import Engine, EngineConfig
from inference.request import (
    Aborted,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    SamplingParams,
    Token,
)

PROMPT = [(3 * i * i + 5) % 256 for i in range(70)]
TERMINAL = (Finished, Aborted, Failed)


def make_engine(base: Path, **config: Any) -> Engine:
    values: dict[str, Any] = {"device": "cpu", "kv_cache_bytes": 4 << 20} | config
    return Engine(EngineConfig(str(base), **values))


def greedy(max_tokens: int = 16, **params: Any) -> SamplingParams:
    return SamplingParams(max_tokens, temperature=0.0, ignore_eos=True, **params)


class Client:
    """Submits requests and records what comes back, by request id."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.events: dict[str, list[Event]] = defaultdict(list)
        self._numbers = count()

    def submit(
        self,
        token_ids: list[int],
        params: SamplingParams,
        adapter: str | None = None,
        salt: str = "",
    ) -> str:
        digest = None if adapter is None else self.engine.resolve_adapter(adapter)
        request_id = f"r{next(self._numbers)}"
        request = GenerateRequest(request_id, tuple(token_ids), params, digest, salt)
        self.engine.submit(request, lambda event: self.events[request_id].append(event))
        return request_id

    def tokens(self, request_id: str) -> list[int]:
        return [e.token_id for e in self.events[request_id] if isinstance(e, Token)]

    def terminal(self, request_id: str) -> list[Event]:
        return [e for e in self.events[request_id] if isinstance(e, TERMINAL)]

    def num_cached(self, request_id: str) -> int:
        first = next(e for e in self.events[request_id] if isinstance(e, Token))
        return first.num_cached_tokens

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.engine.step()
            self.engine.check_integrity()

    def drain(self, max_steps: int = 5000) -> None:
        """Until no request is left; the books are checked after every step."""
        for _ in range(max_steps):
            state = self.engine.state()
            if not state.num_waiting and not state.num_running:
                return
            self.step()
        raise AssertionError("the engine does not come to rest")

    def ask(
        self,
        token_ids: list[int],
        params: SamplingParams,
        adapter: str | None = None,
        salt: str = "",
    ) -> list[int]:
        request_id = self.submit(token_ids, params, adapter, salt)
        self.drain()
        return self.tokens(request_id)


def make_client(base: Path, paths: dict[str, Path], names: str = "ab", **config: Any) -> Client:
    """A client of a fresh engine with these adapters loaded; a letter is a name."""
    client = Client(make_engine(base, **config))
    for name in names:
        client.engine.load_adapter(name, str(paths[name]))
    return client


def wait_until_compiled(engine: Engine) -> None:
    deadline = time.monotonic() + 20
    while not all(adapter.is_compiled for adapter in engine._adapters.pool):
        assert time.monotonic() < deadline
        time.sleep(0.01)
