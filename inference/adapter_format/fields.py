"""Typed reading of a client's JSON object: every wrong field becomes a problem, none raises."""

import math
from dataclasses import dataclass, field

from inference.adapter_format.problem import Problem, clipped

MAX_RANK_IN_CONFIG = 1 << 16


@dataclass
class Fields:
    """The decoded object and what was found wrong in it so far."""

    values: dict[str, object]
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def refuse(self, code: str, message: str, where: str, expected: str, found: object) -> None:
        self.problems.append(Problem(code, message, where, expected, clipped(found)))

    def warn(self, code: str, message: str, where: str, found: object = "") -> None:
        self.warnings.append(Problem(code, message, where, found=clipped(found)))

    def wrong_type(self, where: str, expected: str, found: object) -> None:
        self.refuse("invalid_field", f"{where}: expected {expected}", where, expected, found)

    def flag(self, name: str) -> bool:
        """true or false; missing or null is false."""
        value = self._optional(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        self.wrong_type(name, "true or false", value)
        return False

    def text(self, name: str) -> str:
        """A string; missing or null is empty."""
        value = self.values.get(name)
        if value is None or isinstance(value, str):
            return value or ""
        self.wrong_type(name, "a string or null", value)
        return ""

    def required(self, name: str, default: int) -> object:
        """PEFT's default when missing, with a warning; null is refused."""
        if name not in self.values:
            self.warn("missing_field", f"{name} is missing: PEFT's default {default} is used", name)
            return default
        return self.values[name]

    def as_rank(self, where: str, value: object) -> int | None:
        if type(value) is int and 0 < value <= MAX_RANK_IN_CONFIG:
            return value
        self.wrong_type(where, f"a whole number from 1 to {MAX_RANK_IN_CONFIG}", value)
        return None

    def as_alpha(self, where: str, value: object) -> float | None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            number = _finite(value)
            if number is not None:
                return number
        self.wrong_type(where, "a finite number", value)
        return None

    def strings(self, name: str, value: object, max_items: int) -> list[str]:
        """A list of non-empty strings, at most max_items of at most 256 characters."""
        expected = f"a list of at most {max_items} names"
        if not isinstance(value, list) or len(value) > max_items:
            self.wrong_type(name, expected, value)
            return []
        good = [item for item in value if isinstance(item, str) and 0 < len(item) <= 256]
        if len(good) != len(value):
            bad = next(item for item in value if item not in good)
            self.wrong_type(name, expected, bad)
        return good

    def mapping(self, name: str) -> dict[str, object]:
        """An object; missing or null is empty, null with a warning."""
        value = self._optional(name)
        if value is None or isinstance(value, dict):
            return value or {}
        self.wrong_type(name, "an object", value)
        return {}

    def _optional(self, name: str) -> object:
        if name in self.values and self.values[name] is None:
            self.warn("null_field", f"{name} is null: PEFT's default is used", name)
        return self.values.get(name)


def _finite(value: int | float) -> float | None:
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def is_inactive(value: object) -> bool:
    """Whether a field with this value asks for nothing."""
    return value is None or value is False or value in ("", [], {})
