"""Typed reading of a client's JSON object: null counts as absent, a refusal names the field."""

import math
from collections.abc import Iterable
from typing import Any, TypeGuard, TypeVar

from inference.errors import EngineError, ErrorCode

Default = TypeVar("Default")

NAMES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer"}
NAMES |= {float: "number", type(None): "null"}


def invalid(param: str | None, message: str) -> EngineError:
    return EngineError(ErrorCode.INVALID_REQUEST, message, param)


def unsupported(param: str, message: str) -> EngineError:
    return EngineError(ErrorCode.UNSUPPORTED_PARAMETER, message, param)


def type_name(value: object) -> str:
    return NAMES.get(type(value), type(value).__name__)


def wrong_type(param: str, expected: str, found: object) -> EngineError:
    message = f"Invalid type for '{param}': expected {expected}, but got {type_name(found)}."
    return invalid(param, message)


def is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


class Fields:
    """values: the object. prefix: its place in the body, as in "messages[0].", for messages."""

    def __init__(self, values: dict[str, Any], prefix: str = "") -> None:
        self.values = values
        self.prefix = prefix

    def name(self, key: str) -> str:
        return f"{self.prefix}{key}"

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def refuse_others(self, known: Iterable[str]) -> None:
        """OpenAI's rule: an unknown field is an error, not ignored. null is no field."""
        allowed = frozenset(known)
        for key, value in self.values.items():
            if key not in allowed and value is not None:
                shown = self.name(key)[:100]
                raise unsupported(shown, f"Unrecognized request argument supplied: {shown}")

    def string(self, key: str, default: Default, max_chars: int = 1 << 20) -> str | Default:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise wrong_type(self.name(key), "a string", value)
        if len(value) > max_chars:
            message = f"'{self.name(key)}' has {len(value)} characters; at most {max_chars}."
            raise invalid(self.name(key), message)
        return value

    def required_string(self, key: str) -> str:
        value = self.string(key, None)
        if not value:
            message = f"Missing required parameter: '{self.name(key)}' (a non-empty string)."
            raise invalid(self.name(key), message)
        return value

    def boolean(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise wrong_type(self.name(key), "a boolean", value)
        return value

    def integer(self, key: str, default: Default, lowest: int, highest: int) -> int | Default:
        value = self.get(key)
        if value is None:
            return default
        if not is_integer(value):
            raise wrong_type(self.name(key), "an integer", value)
        return int(self._within(key, value, lowest, highest))

    def number(self, key: str, default: float, lowest: float, highest: float) -> float:
        value = self.get(key)
        if value is None:
            return default
        return float(self._within(key, self._finite(key, value), lowest, highest))

    def obj(self, key: str) -> "Fields | None":
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise wrong_type(self.name(key), "an object", value)
        return Fields(value, f"{self.name(key)}.")

    def array(self, key: str) -> list[Any] | None:
        value = self.get(key)
        if value is not None and not isinstance(value, list):
            raise wrong_type(self.name(key), "an array", value)
        return value

    def _finite(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(self.name(key), "a number", value)
        if isinstance(value, float) and not math.isfinite(value):
            raise invalid(self.name(key), f"'{self.name(key)}' must be a finite number.")
        return value

    def _within(self, key: str, value: Any, lowest: Any, highest: Any) -> Any:
        if lowest <= value <= highest:
            return value
        shown = value if abs(value) < 1e18 else "a number out of range"
        message = f"'{self.name(key)}' must be between {lowest} and {highest}, but got {shown}."
        raise invalid(self.name(key), message)


def object_at(value: object, place: str) -> Fields:
    if not isinstance(value, dict):
        raise wrong_type(place, "an object", value)
    return Fields(value, f"{place}.")
