"""Streams of /v1/completions, as a process: what a round of them saw, as a line of JSON.

    python -m inference.bench.stream_client URL MODEL STREAMS PROMPT_TOKENS VOCAB_SIZE INDEX

Says it is ready, then reads from stdin how many tokens each stream of a round shall have; ends with
stdin. Times are of the machine's monotonic clock, so rounds of several processes compare.
"""

import asyncio
import json
import sys
import time
from typing import Any

import aiohttp


async def main(arguments: list[str]) -> None:
    url, model = arguments[:2]
    num_streams, prompt_tokens, vocab_size, index = map(int, arguments[2:])
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:
        print("ready", flush=True)
        number = 1_000_003 * (index + 1)
        while line := await asyncio.to_thread(sys.stdin.readline):
            bodies = []
            for _ in range(num_streams):
                number += 1
                prompt = [(number * 7919 + i * 31) % vocab_size for i in range(prompt_tokens)]
                bodies.append(_body(model, prompt, int(line)))
            print(json.dumps(await _round(session, bodies)), flush=True)


def _body(model: str, prompt: list[int], output_tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def _round(session: aiohttp.ClientSession, bodies: list[dict[str, Any]]) -> dict[str, Any]:
    begin_s = time.monotonic()
    seen = await asyncio.gather(*(_stream(session, body) for body in bodies))
    return {
        "begin_s": begin_s,
        "end_s": time.monotonic(),
        "num_tokens": sum(num_tokens for _, num_tokens in seen),
        "first_s": [first_s - begin_s for first_s, _ in seen],
    }


async def _stream(session: aiohttp.ClientSession, body: dict[str, Any]) -> tuple[float, int]:
    """When its first event came, and how many tokens the server counted."""
    first_s, usage = 0.0, b""
    async with session.post("/v1/completions", json=body) as answer:
        if answer.status != 200:
            raise SystemExit(f"stream_client: {answer.status} {await answer.text()}")
        async for line in answer.content:
            first_s = first_s or time.monotonic()
            if b'"usage"' in line:
                usage = line
    if not usage:
        raise SystemExit("stream_client: a stream ended without its usage")
    found = json.loads(usage.removeprefix(b"data: "))
    if "usage" not in found or found["usage"] is None:
        raise SystemExit(f"stream_client: a stream ended with {found}")
    return first_s, int(found["usage"]["completion_tokens"])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
