"""A replica's stream, made the client's: frame by frame, or folded into one JSON answer.

The replica is always asked for a stream with usage on every chunk, whatever the client asked for:
so the tokens of a request are known however it ends. Pure: no sockets, no clock.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from adapters.dialects.dialect import Dialect
from adapters.dialects.grafthouse import GRAFTHOUSE
from gateway.openai.errors import from_frame
from gateway.openai.schema import Ask, Endpoint

DONE_FRAME = b"data: [DONE]\n\n"
KEEP_ALIVE_FRAME = b": keep-alive\n\n"
# A frame is one token's JSON; with 20 alternatives a few kB. Above this the replica is broken.
MAX_FRAME_BYTES = 8 * 2**20


class BrokenStream(Exception):
    """The replica sent what is not a stream of OpenAI chunks. The message is for our log."""


class DigestMismatch(Exception):
    """The replica used another adapter version than it was asked for.

    Nothing of it may reach the client.
    """


@dataclass(frozen=True)
class Tokens:
    """What the replica has reported so far. cached is a subset of prompt."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0


class SseParser:
    """Bytes in, payloads of `data:` events out; tolerant of any split, CRLF, comments and
    multi-line data.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_FRAME_BYTES:
            raise BrokenStream(f"a line of more than {MAX_FRAME_BYTES} bytes")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data = []


@dataclass(frozen=True)
class Identity:
    """How the answer names itself: our request id, the public model name, and the digest that must
    have served.
    """

    request_id: str
    model: str
    fingerprint: str


class Relay:
    """One request's chunks on their way to the client; tokens holds what was counted so far.

    asked: the model as the replica was asked for it, by which some dialects say what served.
    """

    def __init__(
        self, ask: Ask, identity: Identity, dialect: Dialect = GRAFTHOUSE, asked: str = ""
    ) -> None:
        self.tokens = Tokens()
        self.has_token = False
        self._ask = ask
        self._identity = identity
        self._dialect = dialect
        self._asked = asked
        prefix = "chatcmpl" if ask.endpoint == "chat.completions" else "cmpl"
        self.answer_id = f"{prefix}-{identity.request_id}"
        self.created = 0

    def decode(self, payload: bytes) -> dict[str, Any]:
        """A payload as a chunk of this request, checked and renamed; usage is counted and still on
        it.

        Raises ApiError for the replica's own error frame, BrokenStream, or DigestMismatch.
        """
        try:
            chunk = orjson.loads(payload)
        except orjson.JSONDecodeError as error:
            raise BrokenStream(f"not JSON: {error}") from error
        if refusal := self._error(chunk, payload):
            raise from_frame(refusal)
        if not isinstance(chunk, dict) or not isinstance(chunk.get("choices"), list):
            raise BrokenStream("a frame without choices")
        used = self._dialect.used(chunk, self._asked)
        if used != self._identity.fingerprint:
            raise DigestMismatch(f"asked for {self._identity.fingerprint}, got {used!r}")
        self._count(chunk)
        self.created = self.created or int(chunk.get("created") or 0)
        chunk["id"] = self.answer_id
        chunk["model"] = self._identity.model
        chunk["system_fingerprint"] = self._identity.fingerprint
        return chunk

    def _error(self, chunk: object, payload: bytes) -> dict[str, Any] | None:
        """Looked for only in what is no chunk: one parse for each token is enough."""
        if isinstance(chunk, dict) and (chunk.get("error") or "choices" not in chunk):
            return self._dialect.read_error(payload)
        return None

    def _count(self, chunk: dict[str, Any]) -> None:
        self.has_token = self.has_token or any(carries_token(one) for one in chunk["choices"])
        usage = chunk.get("usage")
        if not isinstance(usage, dict):
            return
        details = usage.get("prompt_tokens_details") or {}
        # Of several choices each may report late: counts never go back.
        prompt = max(int(usage.get("prompt_tokens") or 0), self.tokens.prompt)
        cached = max(int(details.get("cached_tokens") or 0), self.tokens.cached)
        completion = max(int(usage.get("completion_tokens") or 0), self.tokens.completion)
        self.tokens = Tokens(prompt, min(cached, prompt), completion)
        # Text held back for a stop string or half a character: produced, though not yet shown.
        self.has_token = self.has_token or self.tokens.completion > 0

    def for_client(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        """The chunk as this client asked for it; None for the replica's own usage chunk."""
        if not chunk["choices"]:
            return None
        if self._ask.continuous_usage:
            return chunk
        if self._ask.include_usage:
            return {**chunk, "usage": None}
        chunk.pop("usage", None)
        return chunk

    def usage_chunk(self) -> dict[str, Any]:
        """The one with empty choices, sent last to clients that asked for it."""
        kind = (
            "chat.completion.chunk"
            if self._ask.endpoint == "chat.completions"
            else "text_completion"
        )
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self._identity.model,
            "system_fingerprint": self._identity.fingerprint,
            "choices": [],
            "usage": usage_object(self.tokens),
        }

    def whole(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """The one JSON answer of a client that did not ask for a stream."""
        kind = "chat.completion" if self._ask.endpoint == "chat.completions" else "text_completion"
        return {**self.usage_chunk(), "object": kind, "choices": choices}


def carries_token(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    text = delta.get("content") or delta.get("tool_calls") or choice.get("text")
    return bool(text or choice.get("logprobs") or choice.get("finish_reason"))


def usage_object(tokens: Tokens) -> dict[str, Any]:
    return {
        "prompt_tokens": tokens.prompt,
        "completion_tokens": tokens.completion,
        "total_tokens": tokens.prompt + tokens.completion,
        "prompt_tokens_details": {"cached_tokens": tokens.cached},
    }


def sse(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


class Folder:
    """Chunks in, the choices of one JSON answer out: texts, logprobs and calls joined, by index."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._is_chat = endpoint == "chat.completions"
        self._choices: dict[int, dict[str, Any]] = {}
        self._calls: dict[int, dict[int, dict[str, Any]]] = {}

    def add(self, chunk: dict[str, Any]) -> None:
        for part in chunk["choices"]:
            whole = self._choices.setdefault(part["index"], self._empty(part["index"]))
            if self._is_chat:
                delta = part.get("delta") or {}
                join_strings(whole["message"], delta)
                if delta.get("tool_calls"):
                    join_calls(self._calls.setdefault(part["index"], {}), delta["tool_calls"])
            else:
                whole["text"] += part.get("text") or ""
            if part.get("logprobs"):
                whole["logprobs"] = join_lists(whole["logprobs"] or {}, part["logprobs"])
            for name in ("finish_reason", "stop_reason"):
                if part.get(name) is not None:
                    whole[name] = part[name]

    def _empty(self, index: int) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": None}
        if self._is_chat:
            return choice | {"message": {"role": "assistant", "content": "", "refusal": None}}
        return choice | {"text": ""}

    def choices(self) -> list[dict[str, Any]]:
        for index, calls in self._calls.items():
            message = self._choices[index]["message"]
            message["tool_calls"] = [calls[place] for place in sorted(calls)]
            message["content"] = message["content"] or None
        return [self._choices[index] for index in sorted(self._choices)]


def join_strings(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if isinstance(value, str) and name != "role":
            message[name] = (message.get(name) or "") + value


def join_calls(calls: dict[int, dict[str, Any]], parts: list[dict[str, Any]]) -> None:
    """Of tools, by their place, which only a stream tells; arguments come in pieces."""
    for part in parts:
        call = calls.setdefault(part["index"], {"id": "", "type": "function", "function": {}})
        call["id"] = part.get("id") or call["id"]
        join_strings(call["function"], part.get("function") or {})


def join_lists(whole: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Chat's {content: [...]} and completions' four parallel arrays alike.

    null stays null until there is a list.
    """
    joined = dict(whole)
    for name, value in part.items():
        joined[name] = (joined.get(name) or []) + value if value is not None else joined.get(name)
    return joined
