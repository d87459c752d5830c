"""`python -m gateway.bench.soak`: whether a web process's memory stays flat over 100,000 requests.

Answers, streams, refusals of every kind, clients that leave in the middle of a stream, and
WebSockets that end and that are cut, in turn, through a real web process before the dummy upstream.
No name comes twice where a client chooses it: a table that grows by names would show. Prints the
resident memory after each twentieth of them, and a row for the results.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import orjson
import uvloop
from websockets.asyncio.client import connect

from gateway.bench.load import Target, memory_bytes
from gateway.bench.measure import Row, row
from gateway.bench.record import record
from gateway.bench.stage import CannotBench, stage

RESULTS = Path(__file__).parent / "results"
NUM_SAMPLES = 20
# Of the run: caches fill and pools grow to their size.
WARM_UP = 0.2
MIB = 2**20
# Of an answer whose client leaves.
LONG_TOKENS = 200
PROMPT_BYTES = 8000


class Unexpected(Exception):
    """An answer that is not what this kind of request gets."""


@dataclass
class Soaked:
    """samples: (requests so far, resident bytes of the web process)."""

    num_requests: int
    num_done: int = 0
    wall_s: float = 0.0
    samples: list[tuple[int, int]] = field(default_factory=list)

    def growth_bytes(self) -> float:
        """For each request after the warm-up, by least squares."""
        points = [one for one in self.samples if one[0] >= WARM_UP * self.num_requests]
        mean_x = sum(x for x, _ in points) / len(points)
        mean_y = sum(y for _, y in points) / len(points)
        spread = sum((x - mean_x) ** 2 for x, _ in points)
        return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def ask(number: int) -> list[dict[str, str]]:
    # Long enough that a request which is kept weighs something.
    return [{"role": "user", "content": f"Question {number} " + "x" * PROMPT_BYTES}]


def request(target: Target, number: int, num_tokens: int, is_stream: bool) -> bytes:
    body = {"model": target.model, "messages": ask(number), "max_tokens": num_tokens}
    more = {"stream": is_stream, "user": f"user-{number}", "temperature": 0}
    return raw_request(target, number, orjson.dumps(body | more))


def raw_request(target: Target, number: int, body: bytes) -> bytes:
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{target.port}\r\n"
        f"authorization: Bearer {target.key}\r\nx-request-id: soak-{number}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Client:
    """One connection, opened again when it was left or closed."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, raw: bytes, status: int) -> None:
        reader = await self._send(raw)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if int(head.split(b" ", 2)[1]) != status:
            raise Unexpected(f"expected {status}: {head!r} {await reader.read(500)!r}")
        if b"content-length: " in head:
            await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        else:
            await reader.readuntil(b"0\r\n\r\n")
        if b"connection: close" in head:
            self.leave()

    async def leave_within(self, raw: bytes, num_bytes: int) -> None:
        """Gone after so much of the answer, or without any of it."""
        reader = await self._send(raw)
        await (reader.read(num_bytes) if num_bytes else asyncio.sleep(0.01))
        self.leave()

    async def _send(self, raw: bytes) -> asyncio.StreamReader:
        if self._streams is None:
            where = ("127.0.0.1", self.target.port)
            self._streams = await asyncio.open_connection(*where, limit=MIB)
        self._streams[1].write(raw)
        return self._streams[0]

    def leave(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


async def plain(client: Client, number: int) -> None:
    await client.ask(request(client.target, number, 8, is_stream=False), 200)


async def streamed(client: Client, number: int) -> None:
    await client.ask(request(client.target, number, 8, is_stream=True), 200)


async def refused(client: Client, number: int) -> None:
    target = client.target
    nobody = replace(target, key=f"gh-{number:012d}-x")
    absent = replace(target, model=f"absent-{number}")
    cases = (
        (request(nobody, number, 8, is_stream=True), 401),
        (request(absent, number, 8, is_stream=True), 404),
        (raw_request(target, number, b'{"model": '), 400),
        (raw_request(target, number, b'{"a":' * 100 + b"1" + b"}" * 100), 400),
    )
    await client.ask(*cases[number // 8 % len(cases)])


async def left(client: Client, number: int) -> None:
    num_bytes = 1000 if number // 8 % 2 else 0
    await client.leave_within(
        request(client.target, number, LONG_TOKENS, is_stream=True), num_bytes
    )


async def on_a_socket(client: Client, number: int, is_cut: bool = False) -> None:
    target = client.target
    headers = {"Authorization": f"Bearer {target.key}"}
    num_tokens = LONG_TOKENS if is_cut else 8
    body = {"model": target.model, "messages": ask(number), "max_tokens": num_tokens}
    frame = {"type": "chat", "id": f"g{number}", "resumable": is_cut, "body": body}
    url = f"ws://127.0.0.1:{target.port}/ws/v1/chat"
    async with connect(url, additional_headers=headers, compression=None) as link:
        await link.recv()
        await link.send(orjson.dumps(frame).decode())
        kind = "chunk"
        while kind in {"started", "chunk"}:
            kind = orjson.loads(await link.recv())["type"]
            if is_cut and kind == "chunk":
                link.transport.abort()
                return
    if kind != "done":
        raise Unexpected(f"expected done, got {kind}")


async def cut(client: Client, number: int) -> None:
    await on_a_socket(client, number, is_cut=True)


# By the number of the request.
Kind = Callable[[Client, int], Awaitable[None]]
KINDS: tuple[Kind, ...] = (plain, streamed, refused, plain, streamed, left, refused, plain)
# A handshake costs several requests: one in so many is a socket's, every second of them cut.
SOCKET_EVERY = 25


def kind_of(number: int) -> Kind:
    if number % SOCKET_EVERY == 0:
        return cut if number // SOCKET_EVERY % 2 else on_a_socket
    return KINDS[number % len(KINDS)]


async def soak(target: Target, num_requests: int, num_clients: int) -> Soaked:
    """Raises Unexpected for the first answer that is not as it should be."""
    seen, numbers, begin_s = Soaked(num_requests), count(), time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(num_clients):
            group.create_task(ask_on(Client(target), numbers, seen))
    seen.wall_s = time.monotonic() - begin_s
    return seen


async def ask_on(client: Client, numbers: Iterator[int], seen: Soaked) -> None:
    every = max(1, seen.num_requests // NUM_SAMPLES)
    try:
        while (number := next(numbers)) < seen.num_requests:
            async with asyncio.timeout(120):
                await kind_of(number)(client, number)
            seen.num_done += 1
            if seen.num_done % every == 0:
                seen.samples.append((seen.num_done, memory_bytes(client.target.pid)))
    finally:
        client.leave()


def rows(seen: Soaked) -> Iterator[Row]:
    num = f"{seen.num_requests:,} requests"
    first = next(size for done, size in seen.samples if done >= WARM_UP * seen.num_requests)
    last = seen.samples[-1][1]
    yield row(f"{num} of all kinds: resident after {WARM_UP:.0%}", {"ours": first / MIB}, "MiB")
    yield row(f"{num} of all kinds: resident at the end", {"ours": last / MIB}, "MiB")
    yield row(f"{num} of all kinds: growth a request", {"ours": seen.growth_bytes()}, "bytes")
    yield row(f"{num} of all kinds: rate", {"ours": seen.num_done / seen.wall_s}, "1/s")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m gateway.bench.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=16, help="at once")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            with stage(Path(folder), has_litellm=False) as running:
                seen = uvloop.run(soak(running.ours, options.requests, options.clients))
        except CannotBench as error:
            print(f"python -m gateway.bench.soak: {error}", file=sys.stderr)
            return 1
    for done, size in seen.samples:
        print(f"{done:>9,} requests {size / MIB:8.1f} MiB", file=sys.stderr)
    record(options.results, rows(seen))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
