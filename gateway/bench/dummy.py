"""The upstream of both gateways, as a process: `python -m gateway.bench.dummy PORT`.

It keeps the replica contract of ours (`/state`, a digest on every chunk) and OpenAI's chat
endpoint, and thinks nothing: max_tokens tokens, at once or at a pace. A token's text is the
machine's monotonic clock in ns as it was sent, so a client knows how long each frame was on its
way. `GET /pace/R` sets R tokens/s for the streams that begin after it; 0 is at once. Bare asyncio:
it shares the cores with what is measured.
"""

import asyncio
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import orjson
import uvloop

# The adapter that it says it holds. What is asked for by such a name is answered by it.
DIGEST = "be" * 32
MAX_MODEL_LEN = 8192
PROMPT_TOKENS = 16
STATE = {
    "model": "dummy",
    "num_waiting": 0,
    "num_running": 0,
    "max_model_len": MAX_MODEL_LEN,
    "max_lora_rank": 64,
    "max_loras_per_batch": 8,
    "adapters": [{"name": DIGEST, "digest": DIGEST, "rank": 8, "tier": "device"}],
}
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


class Dummy:
    def __init__(self) -> None:
        self.tokens_per_s = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, kept until its client leaves."""
        try:
            while True:
                path, body = await read_request(reader)
                await self._answer(writer, path, body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, path: str, body: bytes) -> None:
        if path.startswith("/pace/"):
            self.tokens_per_s = float(path.removeprefix("/pace/"))
            write_json(writer, {"tokens_per_s": self.tokens_per_s})
        elif path == "/state":
            write_json(writer, STATE)
        elif path == "/v1/chat/completions":
            await self._chat(writer, orjson.loads(body))
        else:
            write_json(writer, {"object": "list", "data": []})
        await writer.drain()

    async def _chat(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        model, num_tokens = str(body["model"]), int(body.get("max_tokens") or 1)
        if not body.get("stream"):
            if self.tokens_per_s:
                await asyncio.sleep(num_tokens / self.tokens_per_s)
            write_json(writer, completion(model, num_tokens))
            return
        interval = int((body.get("stream_options") or {}).get("stream_interval", 1))
        writer.write(STREAM_HEAD)
        await self._write_stream(writer, model, list(chunk_sizes(num_tokens, interval)))
        writer.write(b"0\r\n\r\n")

    async def _write_stream(
        self, writer: asyncio.StreamWriter, model: str, sizes: list[int]
    ) -> None:
        """sizes: tokens of each chunk. The first comes at once."""
        begin_s, number = time.monotonic(), 0
        frames = [start(model)]
        for size in sizes:
            # By the clock, not by the last token: a late one does not delay those after it.
            await self._wait_for(number + size, begin_s)
            number += size
            frames.append(tokens(model, size, number))
            if self.tokens_per_s:
                write_frames(writer, frames)
                frames = []
                await writer.drain()
        await self._wait_for(number + 1, begin_s)
        write_frames(writer, (*frames, *end(model, number)))

    async def _wait_for(self, number: int, begin_s: float) -> None:
        if self.tokens_per_s:
            await asyncio.sleep(begin_s + (number - 1) / self.tokens_per_s - time.monotonic())


async def read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines if line)
    return first.split(" ")[1], await reader.readexactly(int(headers.get("content-length", 0)))


def write_json(writer: asyncio.StreamWriter, value: object) -> None:
    body = orjson.dumps(value)
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    writer.write(f"{head}\r\n\r\n".encode() + body)


def write_frames(writer: asyncio.StreamWriter, frames: Iterable[bytes]) -> None:
    data = b"".join(b"data: " + frame + b"\n\n" for frame in frames)
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def envelope(model: str, kind: str, choices: list[dict[str, Any]], num_tokens: int) -> bytes:
    usage = {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": num_tokens,
        "total_tokens": PROMPT_TOKENS + num_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    fields = {"id": "chatcmpl-dummy", "object": kind, "created": 1_700_000_000, "model": model}
    fingerprint = model if model == DIGEST else "base"
    rest = {"system_fingerprint": fingerprint, "choices": choices, "usage": usage}
    return orjson.dumps(fields | rest)


def chunk(model: str, delta: dict[str, str], num_tokens: int, reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    return envelope(model, "chat.completion.chunk", [choice], num_tokens)


def start(model: str) -> bytes:
    return chunk(model, {"role": "assistant", "content": ""}, 0)


def chunk_sizes(num_tokens: int, interval: int) -> Iterator[int]:
    """One token, then as many as may wait for each other."""
    yield 1
    for begin in range(1, num_tokens, interval):
        yield min(interval, num_tokens - begin)


def tokens(model: str, size: int, number: int) -> bytes:
    """`size` of them, the last of them the one of this number."""
    return chunk(model, {"content": f"{time.monotonic_ns()} " * size}, number)


def end(model: str, num_tokens: int) -> Iterator[bytes]:
    yield chunk(model, {}, num_tokens, "length")
    yield envelope(model, "chat.completion.chunk", [], num_tokens)
    yield b"[DONE]"


def completion(model: str, num_tokens: int) -> Any:
    text = "".join(f"{time.monotonic_ns()} " for _ in range(num_tokens))
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
    return orjson.Fragment(envelope(model, "chat.completion", [choice], num_tokens))


async def main(port: int) -> None:
    server = await asyncio.start_server(Dummy().serve, "127.0.0.1", port, backlog=4096)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
