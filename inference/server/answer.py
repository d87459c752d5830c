"""A generation → the HTTP response: server-sent events, or one JSON object."""

import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from inference.errors import EngineError
from inference.server.choice import Choice, Delta
from inference.server.errors import OUTCOME, body_of, error_body, json_response
from inference.server.generation import Generation, Step
from inference.server.requests import Streaming
from inference.server.responses import Envelope, Json, usage_json
from inference.server.shapes import Shape

log = logging.getLogger(__name__)

STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    # Tells nginx to pass each event on at once.
    "X-Accel-Buffering": "no",
}
DONE = b"data: [DONE]\n\n"
MAX_JOINED_S = 1.0


# One encoder for all: json.dumps with settings makes a new one for every frame.
encode_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def frame(value: Any) -> bytes:
    return b"data: " + encode_json(value).encode() + b"\n\n"


async def joined(first: Step, steps: AsyncIterator[Step], interval: int) -> AsyncIterator[Step]:
    """Steps in which each choice has one delta, of up to `interval` tokens: whoever only wants the
    whole answer is spared a chunk for each. What came before an error is yielded before it. A slow
    engine's tokens wait MAX_JOINED_S: who reads takes longer silence for its death. The first of a
    choice waits for nothing; first: the step before these, which is sent already.
    """
    held: dict[Choice, list[Delta]] = {}
    begun, sent_at = {choice for choice, _ in first}, time.monotonic()
    try:
        async for step in steps:
            for choice, delta in step:
                held.setdefault(choice, []).append(delta)
            is_due = time.monotonic() > sent_at + MAX_JOINED_S or not held.keys() <= begun
            if is_due or max(map(len, held.values())) >= interval:
                yield together(held)
                begun.update(held)
                held, sent_at = {}, time.monotonic()
    except EngineError:
        if held:
            yield together(held)
        raise
    if held:
        yield together(held)


def together(held: dict[Choice, list[Delta]]) -> Step:
    return [
        (
            choice,
            Delta(
                "".join(delta.text for delta in deltas),
                tuple(shown for delta in deltas for shown in delta.tokens),
                deltas[-1].finish_reason,
            ),
        )
        for choice, deltas in held.items()
    ]


@dataclass(frozen=True)
class Answer:
    envelope: Envelope
    shape: Shape
    streaming: Streaming
    generation: Generation

    async def send(self, request: web.Request) -> web.StreamResponse:
        """Raises EngineError before anything is sent; later errors are a frame of the stream.

        Headers wait for the first token: so a request that fails at once gets its proper status.
        """
        steps = self.generation.steps()
        first = await anext(steps)
        if self.streaming.enabled:
            return await self._stream(request, first, steps)
        return await self._whole(first, steps)

    async def _whole(self, first: Step, steps: AsyncIterator[Step]) -> web.Response:
        deltas: list[list[Delta]] = [[] for _ in self.generation.choices]
        for choice, delta in first:
            deltas[choice.index].append(delta)
        async for step in steps:
            for choice, delta in step:
                deltas[choice.index].append(delta)
        choices = [
            self._whole_choice(choice, deltas[choice.index]) for choice in self.generation.choices
        ]
        body = self.envelope.wrap(self.shape.whole_kind, choices)
        return json_response(body | {"usage": usage_json(self.generation.usage)})

    def _whole_choice(self, choice: Choice, deltas: list[Delta]) -> Json:
        text = "".join(delta.text for delta in deltas)
        return self.shape.whole(choice, text, [shown for delta in deltas for shown in delta.tokens])

    async def _stream(
        self, request: web.Request, first: Step, steps: AsyncIterator[Step]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=STREAM_HEADERS)
        await response.prepare(request)
        try:
            await response.write(self._opening() + self._frames(first))
            async for step in self._joined(first, steps):
                # Nothing to say is common: a character or a possible stop string is incomplete.
                if data := self._frames(step):
                    await response.write(data)
            await response.write(self._closing())
        except EngineError as error:
            await self._fail(request, response, body_of(error))
        except ConnectionError:
            request[OUTCOME] = "disconnected"
        # The status is out already: all that is left is to end the stream with an error.
        except Exception:
            log.exception("a stream failed")
            message = "The server had an error while processing the request."
            await self._fail(request, response, error_body(500, "internal_error", message))
        return response

    def _joined(self, first: Step, steps: AsyncIterator[Step]) -> AsyncIterator[Step]:
        interval = self.streaming.interval
        return steps if interval == 1 else joined(first, steps, interval)

    async def _fail(self, request: web.Request, response: web.StreamResponse, body: Json) -> None:
        request[OUTCOME] = "server_error"
        with contextlib.suppress(ConnectionError):
            await response.write(frame(body))

    def _opening(self) -> bytes:
        chunks = [self.shape.opening(choice) for choice in self.generation.choices]
        return b"".join(self._chunk(chunk) for chunk in chunks if chunk is not None)

    def _frames(self, step: Step) -> bytes:
        return b"".join(self._delta(choice, delta) for choice, delta in step)

    def _delta(self, choice: Choice, delta: Delta) -> bytes:
        """With continuous usage each token makes a chunk, be its text empty: a meter reads them."""
        data = b""
        is_metered = self.streaming.continuous_usage and delta.finish_reason is None
        if delta.text or delta.tokens or is_metered:
            data += self._chunk(self.shape.piece(choice, delta))
        if delta.finish_reason is not None:
            data += self._chunk(self.shape.ending(choice))
        return data

    def _chunk(self, choice: Json) -> bytes:
        chunk = self.envelope.wrap(self.shape.chunk_kind, [choice])
        if self.streaming.continuous_usage:
            chunk["usage"] = usage_json(self.generation.usage)
        elif self.streaming.include_usage:
            chunk["usage"] = None
        return frame(chunk)

    def _closing(self) -> bytes:
        if not self.streaming.include_usage:
            return DONE
        chunk = self.envelope.wrap(self.shape.chunk_kind, [])
        return frame(chunk | {"usage": usage_json(self.generation.usage)}) + DONE
