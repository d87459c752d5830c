"""Clients' regular expressions over module paths, bounded so that none of them can hang a process.

Python's matcher backtracks: the number of ways to try grows with every repetition and ambiguous
alternative. `compile_pattern` estimates that number from above and refuses what could be slow. The
accepted language: literals, classes, escapes, groups, alternatives, look-around, greedy and lazy
repetition; no back references, no inline flags.
"""

import math
import re
from dataclasses import dataclass
from itertools import pairwise

# Module paths are shorter; the length to which the bound on backtracking is computed.
MAX_PATH_CHARS = 40
MAX_PATTERN_CHARS = 1024
# Ways to try per module path. Three hundred paths at this bound take about a second.
MAX_PATTERN_COST = 300_000

_GROUP_PREFIXES = ("?:", "?=", "?!", "?<=", "?<!")
_NAMED_GROUP = re.compile(r"\?P<[A-Za-z_]\w*>")
_BOUNDED_REPEAT = re.compile(r"\{(\d*)(,?)(\d*)\}")
_SPECIAL = frozenset(".^$*+?{}[]\\|()")


class PatternError(ValueError):
    """Why a pattern is refused."""


@dataclass(frozen=True)
class _Cost:
    """Ways to match: C(path + repeats, repeats) for repeats that share one path, times `ways`."""

    num_repeats: int = 0
    ways: int = 1

    def then(self, other: "_Cost") -> "_Cost":
        return _Cost(self.num_repeats + other.num_repeats, self.ways * other.ways)

    def total(self) -> int:
        return math.comb(MAX_PATH_CHARS + self.num_repeats, self.num_repeats) * self.ways


def compile_pattern(source: str, wrap: str = "{}") -> tuple[re.Pattern[str], int]:
    """The compiled `wrap.format(source)` and its cost; PatternError when refused.

    `source` must be a whole pattern by itself: an unbalanced one cannot escape the wrapping.
    """
    if len(source) > MAX_PATTERN_CHARS:
        raise PatternError(f"longer than {MAX_PATTERN_CHARS} characters")
    try:
        re.compile(source)
    except (re.error, RecursionError, OverflowError) as error:
        raise PatternError(f"not a regular expression: {error}") from error
    cost = _Parser(wrap.replace("{}", source)).cost()
    if cost > MAX_PATTERN_COST:
        raise PatternError("too many repetitions or ambiguous alternatives: it could be slow")
    return re.compile(wrap.replace("{}", source)), cost


class _Parser:
    """Recursive descent over a pattern that `re` already accepted."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0

    def cost(self) -> int:
        return self._alternatives(depth=0).total()

    def _peek(self) -> str:
        return self.source[self.at : self.at + 1]

    def _alternatives(self, depth: int) -> _Cost:
        if depth > 20:
            raise PatternError("groups are nested too deeply")
        starts = [self.at]
        costs = [self._sequence(depth)]
        ends = [self.at]
        while self._peek() == "|":
            self.at += 1
            starts.append(self.at)
            costs.append(self._sequence(depth))
            ends.append(self.at)
        branches = [self.source[i:j] for i, j in zip(starts, ends, strict=True)]
        if len(branches) > 1 and _are_exclusive(branches):
            return _Cost()
        num_repeats = max(cost.num_repeats for cost in costs)
        return _Cost(num_repeats, sum(cost.ways for cost in costs))

    def _sequence(self, depth: int) -> _Cost:
        cost = _Cost()
        while self._peek() not in ("", "|", ")"):
            cost = cost.then(self._repeated(self._atom(depth)))
        return cost

    def _atom(self, depth: int) -> _Cost:
        char = self._peek()
        if char == "(":
            return self._group(depth)
        if char == "[":
            self._skip_class()
        elif char == "\\":
            if self.source[self.at + 1].isdigit():
                raise PatternError("back references are not accepted")
            self.at += 2
        else:
            self.at += 1
        return _Cost()

    def _group(self, depth: int) -> _Cost:
        self.at += 1
        if self._peek() == "?":
            self._skip_group_prefix()
        cost = self._alternatives(depth + 1)
        self.at += 1
        return cost

    def _skip_group_prefix(self) -> None:
        if match := _NAMED_GROUP.match(self.source, self.at):
            self.at = match.end()
            return
        for prefix in _GROUP_PREFIXES:
            if self.source.startswith(prefix, self.at):
                self.at += len(prefix)
                return
        raise PatternError("flags, back references and conditions are not accepted")

    def _skip_class(self) -> None:
        self.at += 1
        if self._peek() == "^":
            self.at += 1
        # A bracket that comes first is a member.
        self.at += 1 if self._peek() == "]" else 0
        while self._peek() != "]":
            self.at += 2 if self._peek() == "\\" else 1
        self.at += 1

    def _repeated(self, atom: _Cost) -> _Cost:
        bounds = self._bounds()
        if bounds is None:
            return atom
        low, high = bounds
        if high <= 1:
            return _Cost(atom.num_repeats, atom.ways + 1)
        if atom != _Cost():
            raise PatternError("a repetition inside a repetition could take exponential time")
        return _Cost() if low == high else _Cost(1)

    def _bounds(self) -> tuple[float, float] | None:
        char = self._peek()
        if char in ("*", "+", "?"):
            self.at += 1
            low, high = {"*": (0, math.inf), "+": (1, math.inf), "?": (0, 1)}[char]
        elif match := _BOUNDED_REPEAT.match(self.source, self.at):
            if match.group() in ("{}",):
                return None
            self.at = match.end()
            low = int(match[1] or 0)
            high = (int(match[3]) if match[3] else math.inf) if match[2] else low
        else:
            return None
        # Lazy and possessive forms cost no more.
        self.at += 1 if self._peek() in ("?", "+") else 0
        return low, high


def _are_exclusive(branches: list[str]) -> bool:
    """Whether at most one branch can match at a place: literals, none a prefix of another."""
    plain = [branch.replace("\\.", "\x00").replace("\\b", "") for branch in branches]
    if any(_SPECIAL & set(branch) for branch in plain):
        return False
    ordered = sorted(plain)
    return not any(b.startswith(a) for a, b in pairwise(ordered))
