"""What differs between the two endpoints' answers: the objects inside "choices"."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from inference.server.choice import Choice, Delta, ShownToken
from inference.server.chosen_calls import ChosenCalls
from inference.server.forced_call import ForcedCall
from inference.server.responses import Json, chat_logprobs, completion_logprobs
from inference.server.vocabulary import Vocabulary


class Shape(Protocol):
    """opening, piece, ending: a stream's chunks of a choice. whole: the choice of a JSON answer."""

    id_prefix: str
    whole_kind: str
    chunk_kind: str

    def opening(self, choice: Choice) -> Json | None: ...

    def piece(self, choice: Choice, delta: Delta) -> Json: ...

    def ending(self, choice: Choice) -> Json: ...

    def whole(self, choice: Choice, text: str, tokens: Sequence[ShownToken]) -> Json: ...


class ChatShape:
    id_prefix = "chatcmpl-"
    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, vocabulary: Vocabulary, wants_logprobs: bool) -> None:
        self._vocabulary = vocabulary
        self._wants_logprobs = wants_logprobs

    def opening(self, choice: Choice) -> Json | None:
        return self._chunk(choice, {"role": "assistant", "content": ""})

    def piece(self, choice: Choice, delta: Delta) -> Json:
        logprobs = self._logprobs(delta.tokens) if delta.tokens else None
        return self._chunk(choice, {"content": delta.text}, logprobs)

    def ending(self, choice: Choice) -> Json:
        return self._chunk(choice, {}) | {"finish_reason": choice.finish_reason}

    def whole(self, choice: Choice, text: str, tokens: Sequence[ShownToken]) -> Json:
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": self._logprobs(tokens),
            "finish_reason": choice.finish_reason,
        }

    def _logprobs(self, tokens: Sequence[ShownToken]) -> Json | None:
        return chat_logprobs(self._vocabulary, tokens) if self._wants_logprobs else None

    def _chunk(self, choice: Choice, delta: Json, logprobs: Json | None = None) -> Json:
        return {
            "index": choice.index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": None,
        }


class CallShape(ChatShape):
    """Of a chat whose answer must be a call. name: the function's, if only one may be called."""

    def __init__(self, vocabulary: Vocabulary, wants_logprobs: bool, name: str | None) -> None:
        super().__init__(vocabulary, wants_logprobs)
        # By the choice's index.
        self._calls: defaultdict[int, ForcedCall] = defaultdict(lambda: ForcedCall(name))

    def opening(self, choice: Choice) -> Json | None:
        return self._chunk(choice, {"role": "assistant", "content": None})

    def piece(self, choice: Choice, delta: Delta) -> Json:
        logprobs = self._logprobs(delta.tokens) if delta.tokens else None
        part = self._calls[choice.index].feed(delta.text)
        added = {} if part is None else {"tool_calls": [{"index": 0} | part]}
        return self._chunk(choice, added, logprobs)

    def ending(self, choice: Choice) -> Json:
        return self._chunk(choice, {}) | {"finish_reason": self._finish_reason(choice)}

    def whole(self, choice: Choice, text: str, tokens: Sequence[ShownToken]) -> Json:
        call = self._calls[choice.index].feed(text)
        answer = super().whole(choice, "", tokens)
        if call is not None:
            answer["message"] |= {"content": None, "tool_calls": [call]}
        return answer | {"finish_reason": self._finish_reason(choice)}

    def _finish_reason(self, choice: Choice) -> str | None:
        """Also of a function that was named, where OpenAI says "stop"."""
        return "tool_calls" if self._calls[choice.index].is_whole else choice.finish_reason


class ChosenCallShape(ChatShape):
    """Of a chat whose model may call functions, and says so between tags."""

    def __init__(self, vocabulary: Vocabulary, wants_logprobs: bool, max_calls: int | None) -> None:
        super().__init__(vocabulary, wants_logprobs)
        # By the choice's index.
        self._read: defaultdict[int, ChosenCalls] = defaultdict(lambda: ChosenCalls(max_calls))

    def piece(self, choice: Choice, delta: Delta) -> Json:
        logprobs = self._logprobs(delta.tokens) if delta.tokens else None
        text, calls = self._read[choice.index].feed(delta.text)
        added = {"content": text} | ({"tool_calls": calls} if calls else {})
        return self._chunk(choice, added, logprobs)

    def ending(self, choice: Choice) -> Json:
        rest = self._read[choice.index].finish()
        chunk = self._chunk(choice, {"content": rest} if rest else {})
        return chunk | {"finish_reason": self._finish_reason(choice)}

    def whole(self, choice: Choice, text: str, tokens: Sequence[ShownToken]) -> Json:
        read = self._read[choice.index]
        shown = read.feed(text)[0] + read.finish()
        answer = super().whole(choice, shown, tokens)
        if read.calls:
            calls = [{key: call[key] for key in ("id", "type", "function")} for call in read.calls]
            answer["message"] |= {"content": shown or None, "tool_calls": calls}
        return answer | {"finish_reason": self._finish_reason(choice)}

    def _finish_reason(self, choice: Choice) -> str | None:
        has_called = choice.finish_reason == "stop" and self._read[choice.index].calls
        return "tool_calls" if has_called else choice.finish_reason


class CompletionShape:
    """echoes: for each prompt the text to repeat before its answer; empty strings for none.
    is_scored: that text comes in pieces, with its tokens.
    """

    id_prefix = "cmpl-"
    whole_kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(
        self,
        vocabulary: Vocabulary,
        wants_logprobs: bool,
        echoes: Sequence[str],
        is_scored: bool = False,
    ) -> None:
        self._vocabulary = vocabulary
        self._wants_logprobs = wants_logprobs
        self._echoes = echoes
        self._is_scored = is_scored

    def opening(self, choice: Choice) -> Json | None:
        echo = self._opening_text(choice)
        return self._chunk(choice, echo) if echo else None

    def piece(self, choice: Choice, delta: Delta) -> Json:
        logprobs = self._logprobs(choice, delta.tokens) if delta.tokens else None
        return self._chunk(choice, delta.text, logprobs)

    def ending(self, choice: Choice) -> Json:
        return self._chunk(choice, "") | {"finish_reason": choice.finish_reason}

    def whole(self, choice: Choice, text: str, tokens: Sequence[ShownToken]) -> Json:
        text = self._opening_text(choice) + text
        logprobs = self._logprobs(choice, tokens)
        return self._chunk(choice, text, logprobs) | {"finish_reason": choice.finish_reason}

    def _logprobs(self, choice: Choice, tokens: Sequence[ShownToken]) -> Json | None:
        if not self._wants_logprobs:
            return None
        return completion_logprobs(self._vocabulary, tokens, len(self._echoes[choice.prompt]))

    def _opening_text(self, choice: Choice) -> str:
        return "" if self._is_scored else self._echoes[choice.prompt]

    def _chunk(self, choice: Choice, text: str, logprobs: Json | None = None) -> Json:
        return {
            "index": choice.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": None,
        }
