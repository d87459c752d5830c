"""Tokens → text that may be sent: whole characters only, never any part of a stop string.

Joined, the pieces are exactly the whole text, however the bytes are cut into tokens. Bytes that are
no UTF-8 become U+FFFD, as bytes.decode(errors="replace") does it.
"""

import codecs
from collections.abc import Sequence


class TextStream:
    """num_chars: characters decoded so far. num_released: characters that push and finish returned.

    stopped: a stop string was found; the text before it is released, the rest is gone.
    """

    def __init__(self, stops: Sequence[str] = (), strips_first_space: bool = False) -> None:
        self._stops = stops
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strips_first_space = strips_first_space
        self._held = ""
        self.num_chars = 0
        self.num_released = 0
        self.stopped = False

    @property
    def is_mid_character(self) -> bool:
        return bool(self._decoder.getstate()[0])

    def push(self, raw: bytes, may_stop: bool = True) -> str:
        """raw: one token's bytes. may_stop: false while min_tokens forbids an end."""
        return self._release(self._decode(raw, final=False), may_stop)

    def finish(self) -> str:
        """What was held back for a stop string that never came, and a last broken character."""
        text = self._release(self._decode(b"", final=True), may_stop=True)
        rest, self._held = self._held, ""
        self.num_released += len(rest)
        return text + rest

    def _decode(self, raw: bytes, final: bool) -> str:
        text = self._decoder.decode(raw, final)
        if text and self._strips_first_space:
            self._strips_first_space = False
            text = text.removeprefix(" ")
        self.num_chars += len(text)
        return text

    def _release(self, text: str, may_stop: bool) -> str:
        if self.stopped:
            return ""
        pending = self._held + text
        end = self._first_stop(pending) if may_stop else None
        if end is not None:
            self.stopped = True
            self._held = ""
        else:
            end = len(pending) - (self._num_doubtful(pending) if may_stop else 0)
            self._held = pending[end:]
        self.num_released += end
        return pending[:end]

    def _first_stop(self, pending: str) -> int | None:
        """Where the stop string that completes first begins; the longest, of those ending there."""
        found = [(start + len(stop), start) for stop, start in self._matches(pending)]
        return min(found)[1] if found else None

    def _matches(self, pending: str) -> list[tuple[str, int]]:
        places = [(stop, pending.find(stop)) for stop in self._stops]
        return [(stop, start) for stop, start in places if start >= 0]

    def _num_doubtful(self, pending: str) -> int:
        """Length of the longest end of pending that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(pending)), 0, -1):
            if any(stop.startswith(pending[-length:]) for stop in self._stops):
                return length
        return 0
