"""Adapters on their way: compiled files, host pages, copies that take their time, unloading."""

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from inference.adapter_copies import AdapterCopies, Copied
from inference.engine import Engine
from inference.errors import EngineError, ErrorCode
from inference.lora import LoraPool
from inference.request import AdapterInfo, Failed
from tests.inference.driving import (
    PROMPT,
    Client,
    greedy,
    make_client,
    make_engine,
    wait_until_compiled,
)
from tests.tiny import make_adapter


class LateCopies(AdapterCopies):
    """As on CUDA: what was started is done some looks later, in order."""

    def __init__(self, lora: LoraPool, num_looks: int) -> None:
        super().__init__(lora)
        self.num_looks = num_looks
        self._late: list[tuple[int, Copied]] = []
        self._now = 0

    def finished(self) -> list[Copied]:
        self._now += 1
        self._late += [(self._now + self.num_looks, copied) for copied in super().finished()]
        done = [copied for due, copied in self._late if due <= self._now]
        self._late = self._late[len(done) :]
        return done


def with_late_copies(engine: Engine, num_looks: int = 6) -> LateCopies:
    copies = LateCopies(engine._runner.lora, num_looks)
    engine._adapters._copies = copies
    engine._adapters.pool.copies_ahead = True
    return copies


def info(engine: Engine, name: str) -> AdapterInfo:
    return next(one for one in engine.state().adapters if one.name == name)


def small(base: Path, **config: Any) -> Client:
    """Room for one adapter of rank 8 on the host, and for one on the device."""
    values = {"max_loras_per_batch": 1, "max_lora_rank": 8, "host_adapter_bytes": 1}
    return Client(make_engine(base, **values | config))


def answer(user: Client, name: str | None, num_tokens: int = 6) -> list[int]:
    """With its adapter wherever it is, for as long as that takes."""
    request_id = user.submit(PROMPT, greedy(num_tokens), name)
    deadline = time.monotonic() + 20
    while not user.terminal(request_id) and time.monotonic() < deadline:
        user.step()
    (end,) = user.terminal(request_id)
    assert not isinstance(end, Failed), end
    return user.tokens(request_id)


def num_loads(user: Client, origin: str, target: str = "host") -> int:
    return user.engine.stats().adapter_load_times.get((origin, target), (0, 0.0))[0]


def test_compiled_adapters_answer_as_fresh_ones(
    base: Path, paths: dict[str, Path], tmp_path: Path
) -> None:
    fresh = make_client(base, paths, "abcdef")
    want = {name: fresh.ask(PROMPT, greedy(8), name) for name in "abcdef"}
    folder = {"adapter_cache_dir": str(tmp_path / "compiled")}
    first = make_client(base, paths, "abcdef", **folder)
    wait_until_compiled(first.engine)
    second = make_client(base, paths, "abcdef", **folder)
    assert (num_loads(first, "disk"), num_loads(first, "compiled")) == (6, 0)
    assert (num_loads(second, "disk"), num_loads(second, "compiled")) == (0, 6)
    for user in (first, second):
        assert {name: user.ask(PROMPT, greedy(8), name) for name in "abcdef"} == want
    # What decides the bytes is in the name: another dtype finds nothing.
    half = make_client(base, paths, "a", dtype="bfloat16", **folder)
    assert (num_loads(half, "disk"), num_loads(half, "compiled")) == (1, 0)


def test_a_corrupt_compiled_file_is_packed_again(
    base: Path, paths: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    want = {name: make_client(base, paths, name).ask(PROMPT, greedy(6), name) for name in "ac"}
    user = small(base, adapter_cache_dir=str(tmp_path / "compiled"))
    for name in "ac":
        user.engine.load_adapter(name, str(paths[name]))
    wait_until_compiled(user.engine)
    for path in (tmp_path / "compiled").iterdir():
        raw = bytearray(path.read_bytes())
        raw[-100] ^= 1
        path.write_bytes(raw)
    for _ in range(2):
        for name in "ac":
            assert answer(user, name) == want[name]
        wait_until_compiled(user.engine)
    assert "a page is corrupt" in caplog.text
    # Two first loads, and of each that had left the host again.
    assert num_loads(user, "disk") >= 3 and num_loads(user, "compiled") >= 1


def test_an_adapter_replaced_under_its_path_is_another_version(
    base: Path, paths: dict[str, Path], tmp_path: Path
) -> None:
    want = {name: make_client(base, paths, name).ask(PROMPT, greedy(6), name) for name in "ac"}
    user = small(base, adapter_cache_dir=str(tmp_path / "compiled"))
    place = shutil.copytree(paths["a"], tmp_path / "place")
    user.engine.load_adapter("old", str(place))
    wait_until_compiled(user.engine)
    shutil.copytree(paths["c"], place, dirs_exist_ok=True)
    user.engine.load_adapter("new", str(place))
    with pytest.raises(EngineError) as refused:
        user.engine.load_adapter("old", str(place))
    assert refused.value.code is ErrorCode.ADAPTER_CONFLICT
    for _ in range(2):
        assert answer(user, "old") == want["a"]
        assert answer(user, "new") == want["c"]


def test_replaced_files_without_a_compiled_one_are_not_served(
    base: Path, paths: dict[str, Path], tmp_path: Path
) -> None:
    user = small(base)
    place = shutil.copytree(paths["a"], tmp_path / "place")
    user.engine.load_adapter("old", str(place))
    user.engine.load_adapter("c", str(paths["c"]))
    shutil.copytree(paths["e"], place, dirs_exist_ok=True)
    assert info(user.engine, "old").tier == "disk"
    with pytest.raises(AssertionError, match="no longer have the digest"):
        answer(user, "old")
    assert answer(user, "c")
    # The same bytes from another place are the same version.
    user.engine.load_adapter("again", str(paths["a"]))
    assert answer(user, "old") == answer(user, "again")


def test_loading_does_not_wait_for_room_on_the_host(
    base: Path, paths: dict[str, Path], tmp_path: Path
) -> None:
    user = small(base, adapter_cache_dir=str(tmp_path / "compiled"))
    user.engine.load_adapter("a", str(paths["a"]))
    running = user.submit(PROMPT, greedy(40), "a")
    user.step(2)
    user.engine.load_adapter("c", str(paths["c"]))
    waiting = user.submit(PROMPT, greedy(2), "c")
    # The host's one place holds "c", which waits for the device's one place.
    assert user.engine.load_adapter("e", str(paths["e"])).tier == "disk"
    broken = make_adapter(tmp_path / "broken", base, targets=["q_proj"], bias="all")
    with pytest.raises(EngineError):
        user.engine.load_adapter("broken", str(broken))
    user.drain()
    assert len(user.tokens(running)) == 40 and len(user.tokens(waiting)) == 2
    assert len(answer(user, "e")) == 6


def test_nobody_else_waits_for_a_copy(base: Path, paths: dict[str, Path]) -> None:
    want = make_client(base, paths, "a").ask(PROMPT, greedy(3), "a")
    user = make_client(base, paths, "ab")
    with_late_copies(user.engine, num_looks=40)
    asked = user.submit(PROMPT, greedy(3), "a")
    passing = user.submit(PROMPT, greedy(10))
    user.step(20)
    assert len(user.tokens(passing)) == 10 and not user.events[asked]
    assert (info(user.engine, "a").tier, info(user.engine, "a").is_moving) == ("host", True)
    user.drain()
    assert user.tokens(asked) == want
    assert (info(user.engine, "a").tier, info(user.engine, "a").is_moving) == ("device", False)
    assert num_loads(user, "host", "device") == 1
    stats = user.engine.stats()
    assert (stats.num_adapter_hits, stats.num_adapter_misses) == (0, 1)


@pytest.mark.parametrize("num_looks", [0, 1, 5])
def test_more_adapters_than_fit_while_copies_take_their_time(
    base: Path, paths: dict[str, Path], tmp_path: Path, num_looks: int
) -> None:
    names = [None, *"abcdef"]
    solo = make_client(base, paths, "abcdef")
    want = {name: solo.ask(PROMPT, greedy(6), name) for name in names}
    user = make_client(
        base,
        paths,
        "abcdef",
        max_loras_per_batch=2,
        max_lora_rank=16,
        max_num_seqs=4,
        host_adapter_bytes=1,
        adapter_cache_dir=str(tmp_path / "compiled"),
    )
    with_late_copies(user.engine, num_looks)
    chance = random.Random(num_looks)
    asked = {}
    for _ in range(40):
        name = chance.choice(names)
        asked[user.submit(PROMPT, greedy(6), name)] = name
        user.step(chance.randrange(3))
    user.drain(20_000)
    assert all(user.tokens(request_id) == want[name] for request_id, name in asked.items())
    evictions = user.engine.stats().adapter_evictions
    assert evictions["device", "room"] > 0 and evictions["host", "room"] > 0


def test_unloading_what_is_on_its_way_gives_its_pages_back(
    base: Path, paths: dict[str, Path]
) -> None:
    want = make_client(base, paths, "a").ask(PROMPT, greedy(3), "a")
    user = make_client(base, paths, "ab", max_loras_per_batch=1, max_lora_rank=16)
    copies = with_late_copies(user.engine, num_looks=10)
    given_up = user.submit(PROMPT, greedy(3), "a")
    user.step(2)
    user.engine.unload_adapter("a")
    user.engine.abort(given_up)
    user.step()
    pool = user.engine._adapters.pool
    assert [adapter.is_copying for adapter in pool if not adapter.names] == [True]
    # Loaded again meanwhile: the same version, and its copy goes on.
    user.engine.load_adapter("a", str(paths["a"]))
    assert answer(user, "a", 3) == want
    user.engine.unload_adapter("a")
    assert [one.name for one in user.engine.state().adapters] == ["b"]
    copies.num_looks = 0
    assert len(answer(user, "b")) == 6
    assert len(list(pool)) == 1
    user.engine.check_integrity()


def test_pinned_adapters_come_to_the_device_by_themselves(
    base: Path, paths: dict[str, Path]
) -> None:
    user = make_client(base, paths, "", max_loras_per_batch=3, max_lora_rank=16)
    with_late_copies(user.engine, num_looks=3)
    user.engine.load_adapter("a", str(paths["a"]), pinned=True)
    user.step(8)
    assert (info(user.engine, "a").tier, info(user.engine, "a").pinned) == ("device", True)
    for name in "bcdef":
        user.engine.load_adapter(name, str(paths[name]))
        answer(user, name)
    assert info(user.engine, "a").tier == "device"
    assert user.engine.stats().num_adapter_evictions > 0
    # Loaded again without, it is pinned no more, and leaves as any other does.
    user.engine.load_adapter("a", str(paths["a"]))
    for name in "bcdef":
        answer(user, name)
    assert (info(user.engine, "a").tier, info(user.engine, "a").pinned) == ("host", False)
    user.engine.check_integrity()


def test_loading_again_brings_back_what_had_left_the_host(
    base: Path, paths: dict[str, Path]
) -> None:
    user = small(base)
    for name in "ac":
        user.engine.load_adapter(name, str(paths[name]))
    assert (info(user.engine, "a").tier, info(user.engine, "c").tier) == ("disk", "host")
    user.engine.load_adapter("a", str(paths["a"]))
    deadline = time.monotonic() + 10
    while info(user.engine, "a").tier == "disk":
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert (info(user.engine, "a").tier, info(user.engine, "c").tier) == ("host", "disk")
    user.engine.check_integrity()
