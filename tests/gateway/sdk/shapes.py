"""Answers held against the official SDK's own types: nothing coerced, nothing besides."""

from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel

Kind = TypeVar("Kind", bound=BaseModel)


def strict(kind: type[Kind], raw: str | bytes) -> Kind:
    """raw as the SDK types it. The SDK itself builds its objects without looking at the values."""
    value = kind.model_validate_json(raw, strict=True)
    assert list(unnamed(value)) == []
    return value


def unnamed(value: Any, place: str = "") -> Iterator[str]:
    """Fields that the SDK's type does not name, by their place."""
    if isinstance(value, list):
        for number, one in enumerate(value):
            yield from unnamed(one, f"{place}[{number}]")
    if isinstance(value, BaseModel):
        yield from (f"{place}.{name}" for name in value.model_extra or ())
        for name in value.model_fields_set:
            yield from unnamed(getattr(value, name), f"{place}.{name}")


def frames(text: str) -> list[str]:
    """The payloads of a whole stream's events, less its end, which must be there."""
    *events, end, rest = text.split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    # Comments keep a connection alive and are no events.
    return [one.removeprefix("data: ") for one in events if not one.startswith(":")]
