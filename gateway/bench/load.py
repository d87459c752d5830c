"""The clients, as a process: `python -m gateway.bench.load`, a Job as JSON on stdin, what was seen
as JSON on stdout. Bare asyncio: what it costs itself is in the direct run, which every figure is
held against.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
import uvloop

PAGE_BYTES = 4096
# By the clock: who answers a stream's first token late does not have fewer of them to open.
OPENED_PER_S = 100
QUESTION = [{"role": "user", "content": "I was charged twice for order 55321, please refund me."}]


@dataclass(frozen=True)
class Target:
    """pid: of its web process, whose memory a job of streams looks at."""

    name: str
    port: int
    model: str
    key: str = "none"
    pid: int = 0


@dataclass(frozen=True)
class Job:
    """num_clients at once. Answers (is_stream False): num_requests in all or duration_s long, the
    first of the two. Streams: one a client, given up after duration_s. spread_s: over which clients
    begin to ask for answers.
    """

    target: Target
    num_clients: int
    num_tokens: int
    duration_s: float
    num_requests: int = 0
    is_stream: bool = False
    spread_s: float = 0.0


@dataclass
class Seen:
    """frames_s: how long each token was on its way from the upstream. Bytes: of the web process."""

    wall_s: float = 0.0
    answers_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    frames_s: list[float] = field(default_factory=list)
    num_failed: int = 0
    num_open: int = 0
    max_open: int = 0
    idle_bytes: int = 0
    open_bytes: int = 0
    problem: str = ""

    def failed(self, problem: object) -> None:
        self.num_failed += 1
        self.problem = self.problem or repr(problem)[:300]


class Refused(Exception):
    """Not a 200, or a stream without all its tokens and its end."""


def request_bytes(job: Job) -> bytes:
    body = {"model": job.target.model, "messages": QUESTION, "max_tokens": job.num_tokens}
    raw = orjson.dumps(body | {"stream": job.is_stream})
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{job.target.port}\r\n"
        f"authorization: Bearer {job.target.key}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


async def read_head(reader: asyncio.StreamReader) -> dict[str, str]:
    """The headers of a 200; Refused for any other answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    if first.split(" ")[1] != "200":
        raise Refused(f"{first} {(await reader.read(300))!r}")
    return dict(line.lower().split(": ", 1) for line in lines if line)


async def read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
        return
    while size := int(await reader.readuntil(b"\r\n"), 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readline()


async def read_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line


async def ask_on(job: Job, number: int, left: list[int], until_s: float, seen: Seen) -> None:
    """One client that asks again as soon as it is answered, over one connection."""
    await asyncio.sleep(number * job.spread_s / job.num_clients)
    raw = request_bytes(job)
    reader, writer = await asyncio.open_connection("127.0.0.1", job.target.port)
    try:
        while left[0] > 0 and time.monotonic() < until_s:
            left[0] -= 1
            begin_s = time.monotonic()
            writer.write(raw)
            headers = await read_head(reader)
            async for _ in read_body(reader, headers):
                pass
            seen.answers_s.append(time.monotonic() - begin_s)
    except (Refused, OSError, asyncio.IncompleteReadError) as error:
        seen.failed(error)
    finally:
        writer.close()


async def try_stream(job: Job, number: int, seen: Seen) -> None:
    await asyncio.sleep(number / OPENED_PER_S)
    try:
        await stream_once(job, seen)
    except (Refused, OSError, asyncio.IncompleteReadError) as error:
        seen.failed(error)


async def stream_once(job: Job, seen: Seen) -> None:
    begin_s = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", job.target.port)
    try:
        writer.write(request_bytes(job))
        lines = read_lines(read_body(reader, await read_head(reader)))
        await read_token(lines, seen)
        seen.first_s.append(time.monotonic() - begin_s)
        with counted(job, seen):
            for _ in range(job.num_tokens - 1):
                await read_token(lines, seen)
            await read_end(lines)
    finally:
        writer.close()


@contextmanager
def counted(job: Job, seen: Seen) -> Iterator[None]:
    """Among the open streams; the last of them looks at the memory of all."""
    seen.num_open += 1
    seen.max_open = max(seen.max_open, seen.num_open)
    if seen.num_open == job.num_clients:
        seen.open_bytes = memory_bytes(job.target.pid)
    try:
        yield
    finally:
        seen.num_open -= 1


async def read_token(lines: AsyncIterator[bytes], seen: Seen) -> None:
    async for line in lines:
        text = content(line)
        if text:
            seen.frames_s.append((time.monotonic_ns() - int(text)) / 1e9)
            return
    raise Refused("the stream ended before its last token")


async def read_end(lines: AsyncIterator[bytes]) -> None:
    async for line in lines:
        if line.startswith(b"data: [DONE]"):
            return
    raise Refused("the stream ended without [DONE]")


def content(line: bytes) -> str:
    if not line.startswith(b"data: {"):
        return ""
    frame = orjson.loads(line[6:])
    if "error" in frame:
        raise Refused(frame["error"])
    choices = frame.get("choices")
    return str((choices[0]["delta"].get("content") if choices else "") or "")


def memory_bytes(pid: int) -> int:
    """Resident; 0 for no process."""
    path = Path(f"/proc/{pid}/statm")
    return int(path.read_text().split()[1]) * PAGE_BYTES if pid and path.exists() else 0


async def play(job: Job) -> Seen:
    seen = Seen(idle_bytes=memory_bytes(job.target.pid))
    begin_s = time.monotonic()
    if job.is_stream:
        clients = [try_stream(job, number, seen) for number in range(job.num_clients)]
        await give_up_after(job.duration_s, clients, seen)
    else:
        left = [job.num_requests]
        until_s = begin_s + job.duration_s
        numbers = range(job.num_clients)
        await asyncio.gather(*(ask_on(job, number, left, until_s, seen) for number in numbers))
    seen.wall_s = time.monotonic() - begin_s
    return seen


async def give_up_after(
    duration_s: float, clients: list[Coroutine[Any, Any, None]], seen: Seen
) -> None:
    tasks = [asyncio.create_task(one) for one in clients]
    _, late = await asyncio.wait(tasks, timeout=duration_s)
    for task in late:
        task.cancel()
        seen.failed(f"not done after {duration_s:g} s")
    await asyncio.gather(*tasks, return_exceptions=True)


def main() -> None:
    fields = orjson.loads(sys.stdin.buffer.read())
    job = Job(**fields | {"target": Target(**fields["target"])})
    seen = orjson.dumps(asdict(uvloop.run(play(job))))
    # An unbuffered sys.stdout may write a part of it and say so to nobody.
    with open(sys.stdout.fileno(), "wb", closefd=False) as out:
        out.write(seen)


if __name__ == "__main__":
    main()
