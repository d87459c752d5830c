"""The engine behind its process border: also one that is gone leaves no question open."""

import threading
from pathlib import Path
from typing import Any

import pytest

from inference.config import EngineConfig
from inference.errors import EngineError, ErrorCode
from inference.request import GenerateRequest, SamplingParams
from inference.server.remote_engine import RemoteEngine

CONFIG: dict[str, Any] = {"device": "cpu", "kv_cache_bytes": 4 << 20, "num_threads": 1}


def test_nobody_waits_for_an_engine_that_is_gone(base: Path) -> None:
    engine = RemoteEngine(EngineConfig(str(base), **CONFIG), ())
    has_died = threading.Event()
    engine.start(has_died.set)
    try:
        assert engine.state().max_model_len == engine.max_model_len
        engine._process.kill()
        assert has_died.wait(30)
        request = GenerateRequest("r", (1, 2), SamplingParams(4))
        asks = (
            engine.state,
            engine.stats,
            lambda: engine.load_adapter("a", "/nowhere"),
            lambda: engine.submit(request, lambda event: None),
        )
        for ask in asks:
            with pytest.raises(EngineError, match="has stopped") as refused:
                ask()
            assert refused.value.code is ErrorCode.OVERLOADED
        engine.abort("r")
    finally:
        engine.stop()


def test_refusals_cross_with_their_field(base: Path) -> None:
    engine = RemoteEngine(EngineConfig(str(base), **CONFIG), ())
    engine.start(lambda: None)
    try:
        posted: list[object] = []
        came = threading.Event()

        def on_event(event: object) -> None:
            posted.append(event)
            came.set()

        engine.submit(GenerateRequest("r", (999_999,), SamplingParams(4)), on_event)
        assert came.wait(30)
        (error,) = posted
        assert isinstance(error, EngineError)
        assert (error.code, error.param) == (ErrorCode.INVALID_REQUEST, "prompt")
        with pytest.raises(EngineError, match="nowhere") as unreadable:
            engine.load_adapter("a", "/nowhere")
        assert unreadable.value.code is ErrorCode.INVALID_ADAPTER
    finally:
        engine.stop()
