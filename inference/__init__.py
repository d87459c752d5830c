"""The engine process: one base model, many adapters. Importing the package loads no torch."""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inference.config import EngineConfig
    from inference.engine import Engine

# Read by torch at its first allocation: memory from 2 MiB on lies on huge pages where the kernel
# lends some. A step on the CPU reads all weights once, and finding their pages is much of the time.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # noqa: TID251 (handed on, not read)

__all__ = ["Engine", "EngineConfig"]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from inference.engine import Engine

        return Engine
    if name == "EngineConfig":
        from inference.config import EngineConfig

        return EngineConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
