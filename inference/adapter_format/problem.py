"""One reason why an adapter cannot be served, or one thing its owner should know."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

# A file can be wrong in thousands of places in the same way; the report shows this many of each.
MAX_PROBLEMS_PER_CODE = 8


@dataclass(frozen=True)
class Problem:
    """code: stable, for programs. where: the field, tensor or file. expected, found: for people."""

    code: str
    message: str
    where: str = ""
    expected: str = ""
    found: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


class FormatError(Exception):
    """The file cannot be read as what it should be; `problems` says why, never empty."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(problem.message for problem in self.problems))


Report = Callable[[Problem], None]


def shortened(problems: Iterable[Problem]) -> list[Problem]:
    """At most MAX_PROBLEMS_PER_CODE of each code, then one line with the number left out."""
    by_code: dict[str, list[Problem]] = {}
    for problem in problems:
        by_code.setdefault(problem.code, []).append(problem)
    return [shown for code, group in by_code.items() for shown in _shortened_group(code, group)]


def _shortened_group(code: str, group: list[Problem]) -> list[Problem]:
    num_left_out = len(group) - MAX_PROBLEMS_PER_CODE
    if num_left_out <= 0:
        return group
    more = Problem(code, f"and {num_left_out} more of the same kind")
    return [*group[:MAX_PROBLEMS_PER_CODE], more]


def clipped(value: object, max_chars: int = 120) -> str:
    """A client's value as it may stand in a report: bounded, printable."""
    text = value if isinstance(value, str) else repr(value)
    text = "".join(char if char.isprintable() else "?" for char in text[: max_chars + 1])
    return text if len(text) <= max_chars else text[:max_chars] + "…"
