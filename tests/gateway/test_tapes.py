"""What tapes keep in memory, and that all of it is given back."""

import asyncio
import random
from typing import Any

import orjson
import pytest

from gateway.openai.http import ClientGone
from gateway.readers import Owner, frames_of
from gateway.tapes import Tape, Tapes, as_text
from tenants.errors import ApiError

OWNER = Owner(1, 1, None)
VALUE = {"x": "y" * 100}


@pytest.fixture
def tapes(settings: Any) -> Tapes:
    settings.RESUME_WINDOW_S = 60
    settings.MAX_RESUME_BYTES = 2000
    settings.MAX_RESUME_TOTAL_BYTES = 10_000
    return Tapes()


async def write_all(tape: Tape, num_frames: int) -> None:
    for _ in range(num_frames):
        await tape.write("chunk", "data", VALUE)
        await asyncio.sleep(0)
    tape.end("done", "usage", {})


async def read_all(tape: Tape, after: int = 0) -> list[int]:
    reader = tape.attach(after)
    try:
        return [orjson.loads(as_text("a", one))["seq"] async for one in frames_of(reader, after)]
    finally:
        reader.leave()


async def read_whole(tapes: Tapes, num_frames: int = 50) -> Tape:
    """A resumable one, read to its end."""
    tape = tapes.make(OWNER, is_resumable=True)
    reading = asyncio.create_task(read_all(tape))
    await asyncio.sleep(0)
    tape.start(write_all(tape, num_frames))
    assert await reading == list(range(1, num_frames + 2))
    return tape


async def test_what_was_read_is_kept_up_to_its_bytes(tapes: Tapes) -> None:
    tape = await read_whole(tapes)
    assert 1500 < tapes.num_bytes <= 2000
    with pytest.raises(ApiError, match="after: expected"):
        tape.attach(0)
    assert await read_all(tape, 49) == [50, 51]
    tape.forget()
    assert tapes.num_bytes == 0


async def test_the_process_has_a_bound_too(tapes: Tapes) -> None:
    """What has ended goes first; the newest stays."""
    for _ in range(20):
        newest = await read_whole(tapes)
        assert tapes.num_bytes <= 10_000 + 200
    assert tapes.find(OWNER, newest.name) is newest
    await tapes.close()
    assert tapes.num_bytes == 0


async def test_without_a_reader_a_full_process_ends_it(tapes: Tapes, settings: Any) -> None:
    settings.MAX_RESUME_BYTES = 10**6
    tape = tapes.make(OWNER, is_resumable=True)
    with pytest.raises(ClientGone):
        await write_all(tape, 1000)
    assert tapes.num_bytes < 11_000
    tape.forget()
    assert tapes.num_bytes == 0


async def test_what_cannot_be_resumed_keeps_nothing(tapes: Tapes) -> None:
    tape = tapes.make(OWNER, is_resumable=False)
    reading = asyncio.create_task(read_all(tape))
    await asyncio.sleep(0)
    tape.start(write_all(tape, 50))
    await reading
    await asyncio.sleep(0.01)
    assert tapes.num_bytes == 0
    with pytest.raises(ApiError, match="no such generation"):
        tapes.find(OWNER, tape.name)


async def test_any_order_of_readers_reads_every_frame_once(tapes: Tapes, settings: Any) -> None:
    """Readers come, leave and take over at random; each goes on where the last one stopped."""
    settings.MAX_RESUME_BYTES = 10**6
    settings.MAX_RESUME_TOTAL_BYTES = 10**7
    chance = random.Random(5)
    for _ in range(50):
        tape, seen = tapes.make(OWNER, is_resumable=True), 0
        tape.start(write_all(tape, 60))
        while seen < 61:
            reader = tape.attach(seen)
            stop_at = seen + chance.randrange(1, 20)
            async for frame in frames_of(reader, seen):
                seen += 1
                assert orjson.loads(as_text("a", frame))["seq"] == seen
                if seen == stop_at:
                    break
            # Now and then the next takes over before this one has left.
            if chance.random() < 0.5:
                reader.leave()
        tape.forget()
    assert tapes.num_bytes == 0
