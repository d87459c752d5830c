"""What crosses between the engine's process and its front, pickled: one is the other's child."""

from dataclasses import dataclass
from typing import Any

from inference.config import EngineConfig
from inference.errors import EngineError
from inference.request import Event, GenerateRequest

# What may be called by name.
METHODS = frozenset(("load_adapter", "unload_adapter", "state", "stats"))


@dataclass(frozen=True)
class Start:
    """The first message of the front. adapters: (name, path) to load before Started."""

    config: EngineConfig
    adapters: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Started:
    """digests: by the names of the adapters."""

    max_model_len: int
    digests: dict[str, str]


@dataclass(frozen=True)
class Submit:
    request: GenerateRequest


@dataclass(frozen=True)
class Abort:
    request_id: str


@dataclass(frozen=True)
class Call:
    """One of METHODS; answered by a Reply of its number."""

    number: int
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Reply:
    """result: what the method returned, or the EngineError that it raised."""

    number: int
    result: Any


@dataclass(frozen=True)
class Refused:
    """The engine took no part of the request: no event follows."""

    request_id: str
    error: EngineError


@dataclass(frozen=True)
class Died:
    """The engine's loop ended by an error of ours."""


News = Event | Refused | Reply | Died
