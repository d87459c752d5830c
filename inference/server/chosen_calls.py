"""Calls that a model chose to make, in the notation of its template → text and calls, apart."""

import json
import uuid
from typing import Any

Json = dict[str, Any]

# Hermes's, which Qwen's templates teach too: {"name", "arguments"} between two tags.
OPENING, CLOSING = "<tool_call>", "</tool_call>"


class ChosenCalls:
    """One answer's text, read piece by piece. What might become a tag waits for the next piece.

    max_calls: later ones are left out; None for any number.
    """

    def __init__(self, max_calls: int | None) -> None:
        self.calls: list[Json] = []
        self._max_calls = max_calls
        self._rest = ""

    def feed(self, text: str) -> tuple[str, list[Json]]:
        """(text outside of calls, calls that are complete now)."""
        self._rest += text
        num_before, shown = len(self.calls), ""
        while (start := self._rest.find(OPENING)) >= 0:
            end = self._rest.find(CLOSING, start)
            if end < 0:
                break
            shown += self._text(self._rest[:start])
            shown += self._take(self._rest[start : end + len(CLOSING)])
            self._rest = self._rest[end + len(CLOSING) :]
        held = len(self._rest) - start if start >= 0 else _num_held(self._rest)
        ready, self._rest = _split(self._rest, len(self._rest) - held)
        return shown + self._text(ready), self.calls[num_before:]

    def finish(self) -> str:
        """What never became a call is text."""
        rest, self._rest = self._rest, ""
        return self._text(rest)

    def _take(self, block: str) -> str:
        """The block as a call; as it stands where it is none."""
        call = _call(block[len(OPENING) : -len(CLOSING)])
        if call is None:
            return block
        if self._max_calls is None or len(self.calls) < self._max_calls:
            self.calls.append({"index": len(self.calls)} | call)
        return ""

    def _text(self, text: str) -> str:
        """Ends of lines between calls are nobody's words."""
        return "" if self.calls and not text.strip() else text


def _split(text: str, at: int) -> tuple[str, str]:
    return text[:at], text[at:]


def _num_held(text: str) -> int:
    """Characters at the end that may be the beginning of a tag."""
    sizes = range(min(len(OPENING) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(OPENING[:size])), 0)


def _call(text: str) -> Json | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    arguments = found.get("arguments", {})
    if not isinstance(arguments, dict):
        return None
    written = json.dumps(arguments, ensure_ascii=False)
    function = {"name": found["name"], "arguments": written}
    return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
