"""One sequence of an answer: the engine's events → text deltas, logprobs, counts, finish reason."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from inference.request import Token, TokenLogprobs
from inference.server.text_stream import TextStream

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class ShownToken:
    """A token whose text was released. offset: where it begins, in characters of the answer; below
    0 in the prompt, whose first token alone has no logprobs.
    """

    token_id: int
    logprobs: TokenLogprobs | None
    offset: int


@dataclass(frozen=True)
class Delta:
    """What one event adds. finish_reason is set on the last one."""

    text: str = ""
    tokens: tuple[ShownToken, ...] = ()
    finish_reason: FinishReason | None = None


@dataclass(frozen=True)
class ChoiceRules:
    """end_ids: tokens that end a sequence and are not shown when they do (EOS, stop_token_ids)."""

    token_bytes: Callable[[int], bytes]
    end_ids: frozenset[int]
    stops: tuple[str, ...] = ()
    min_tokens: int = 0
    strips_first_space: bool = False


class Choice:
    """index: its number in the answer. prompt: the number of its prompt in the request.

    num_tokens: tokens generated and counted, the end token among them; none after a stop string.
    """

    def __init__(self, index: int, prompt: int, rules: ChoiceRules) -> None:
        self.index = index
        self.prompt = prompt
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self.finish_reason: FinishReason | None = None
        self._rules = rules
        self._text = TextStream(rules.stops, rules.strips_first_space)
        # Released with their text: (end in characters, token).
        self._waiting: list[tuple[int, ShownToken]] = []
        # A possible end token: shown only if the sequence goes on after it.
        self._candidate: Token | None = None

    def take(self, token: Token) -> Delta:
        """Ends by itself (finish_reason "stop") when a stop string is complete."""
        before, self._candidate = self._candidate, None
        self.num_tokens += 1
        self.num_cached_tokens = token.num_cached_tokens
        text = self._show(before, self.num_tokens - 1) if before else ""
        if token.token_id in self._rules.end_ids:
            self._candidate = token
        elif not self._text.stopped:
            text += self._show(token, self.num_tokens)
        if self._text.stopped:
            self.finish_reason = "stop"
            self._candidate = None
        return Delta(text, self._released(), self.finish_reason)

    def end(self, reason: FinishReason) -> Delta:
        """The engine's Finished."""
        text = ""
        if self._candidate is not None and reason == "length":
            text = self._show(self._candidate, self.num_tokens)
        text += self._text.finish()
        self.finish_reason = "stop" if self._text.stopped else reason
        return Delta(text, self._released(), self.finish_reason)

    def _show(self, token: Token, number: int) -> str:
        start = self._text.num_chars
        raw = self._rules.token_bytes(token.token_id)
        text = self._text.push(raw, may_stop=number > self._rules.min_tokens)
        if token.logprobs is not None:
            end = self._text.num_chars + self._text.is_mid_character
            self._waiting.append((end, ShownToken(token.token_id, token.logprobs, start)))
        return text

    def _released(self) -> tuple[ShownToken, ...]:
        num_out = sum(1 for end, shown in self._waiting if self._is_out(end, shown))
        out, self._waiting = self._waiting[:num_out], self._waiting[num_out:]
        return tuple(shown for _, shown in out)

    def _is_out(self, end: int, shown: ShownToken) -> bool:
        """Is its text out? At a stop string: also that of the token in which the stop began."""
        if self.finish_reason is None:
            return end <= self._text.num_released
        return not self._text.stopped or shown.offset < self._text.num_released
