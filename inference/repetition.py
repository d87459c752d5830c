"""How large a regular expression or a grammar is once its repetitions are written out.

{0,1000000} is nine characters and a million states. This counts, it does not parse: what is not
well formed is the compiler's to refuse.
"""

import re

BOUNDS = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}", re.ASCII)
TOO_MANY = 10**9
MAX_DIGITS = 9


def num_positions(text: str, has_strings: bool) -> int:
    """Characters, classes and references, each as often as the repetitions around it say; at most
    TOO_MANY. has_strings: a grammar, where "…" is one thing.
    """
    counts = [0]
    last, at = 0, 0
    while at < len(text):
        char = text[at]
        bounds = BOUNDS.match(text, at) if char == "{" else None
        if bounds is not None:
            counts[-1] = min(counts[-1] + last * (_times(bounds) - 1), TOO_MANY)
            last = min(last * _times(bounds), TOO_MANY)
            at = bounds.end()
            continue
        if char == "(":
            counts.append(0)
        elif char == ")" and len(counts) > 1:
            last = counts.pop()
            counts[-1] = min(counts[-1] + last, TOO_MANY)
        elif char not in "*+?|)":
            last = 1
            counts[-1] += 1
        at = _end(text, at, has_strings)
    return min(sum(counts), TOO_MANY)


def _times(bounds: re.Match[str]) -> int:
    """{2}, {2,} and {2,5}: 2, 2 and 5; at least 1."""
    found = [digits.lstrip("0") for digits in bounds.groups()]
    return max(TOO_MANY if len(d) > MAX_DIGITS else int(d or 1) for d in found)


def _end(text: str, at: int, has_strings: bool) -> int:
    """Behind the thing that begins here."""
    char = text[at]
    if char == "\\":
        return at + 2
    if char not in '["' or (char == '"' and not has_strings):
        return at + 1
    close = "]" if char == "[" else '"'
    at += 1
    while at < len(text) and text[at] != close:
        at += 2 if text[at] == "\\" else 1
    return at + 1
