"""The engine process: one base model, many adapters. Importing the package loads no torch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inference.config import EngineConfig
    from inference.engine import Engine

__all__ = ["Engine", "EngineConfig"]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from inference.engine import Engine

        return Engine
    if name == "EngineConfig":
        from inference.config import EngineConfig

        return EngineConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
