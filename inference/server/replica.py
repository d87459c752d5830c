"""What the routes share: the loaded model, the engine, and which weights a name means."""

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from inference.errors import EngineError, ErrorCode
from inference.metrics import FrontMetrics
from inference.server.bridge import Bridge, ServingEngine
from inference.server.errors import HttpError
from inference.server.fields import invalid
from inference.server.model_folder import ModelFolder
from inference.server.requests import Target
from inference.server.template_process import TemplateProcess
from inference.server.usage_log import UsageLog

NOT_READY = "The model is still loading."
DRAINING = "The server is shutting down."


@dataclass(frozen=True)
class Loaded:
    """Set once, when the engine can answer. base_name: what clients call the base model."""

    folder: ModelFolder
    engine: ServingEngine
    max_model_len: int


@dataclass
class Replica:
    """adapter_dirs: the only roots below which adapters load over HTTP; empty: anywhere."""

    base_name: str
    adapter_dirs: tuple[Path, ...]
    bridge: Bridge
    metrics: FrontMetrics
    loaded: Loaded | None = None
    usage_log: UsageLog = field(default_factory=UsageLog)
    templates: TemplateProcess = field(default_factory=TemplateProcess)
    is_draining: bool = False
    started_at: int = field(default_factory=lambda: int(time.time()))
    # One load or unload at a time: the second of two equal loads then finds the first one's result.
    adapter_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def ready(self) -> Loaded:
        """Raises HttpError 503 while the model loads and after the order to stop."""
        if self.is_draining:
            raise HttpError(503, "overloaded", DRAINING, {"Retry-After": "1"})
        if self.loaded is None:
            raise HttpError(503, "overloaded", NOT_READY, {"Retry-After": "1"})
        return self.loaded


REPLICA = web.AppKey("replica", Replica)


def resolve(target: Target, replica: Replica, engine: ServingEngine) -> tuple[str, str | None]:
    """(name to answer under, digest or None for the base). Exact names only, never a fallback.

    lora_path names an adapter beside the base's name, or beside the same adapter's name.
    Raises EngineError 404 for a name that is neither, 400 for two different adapters.
    """
    wants_base = target.model == replica.base_name
    if target.lora_path is None or target.lora_path == target.model:
        if wants_base:
            return target.model, None
        return target.model, _digest(engine, target.model, "model")
    if not wants_base:
        _digest(engine, target.model, "model")
        raise invalid("lora_path", "'model' and 'lora_path' name two different adapters.")
    return target.lora_path, _digest(engine, target.lora_path, "lora_path")


def _digest(engine: ServingEngine, name: str, param: str) -> str:
    try:
        return engine.resolve_adapter(name)
    except EngineError as error:
        message = f"The model '{name[:200]}' does not exist."
        raise EngineError(ErrorCode.MODEL_NOT_FOUND, message, param) from error
