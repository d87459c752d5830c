"""Adapters while the engine runs: loading, naming, isolation, swapping, unloading, loss."""

import threading
import time
from pathlib import Path

import pytest

from inference.errors import EngineError, ErrorCode
from inference.request import Failed, GenerateRequest
from tests.inference.driving import PROMPT, Client, greedy, make_client, make_engine
from tests.tiny import make_adapter, make_base


@pytest.mark.case("C65")
def test_prefix_cache_never_crosses_adapters_or_salts(base: Path, paths: dict[str, Path]) -> None:
    cold = Client(make_engine(base, prefix_cache=False))
    warm = make_client(base, paths)
    for name in "ab":
        cold.engine.load_adapter(name, str(paths[name]))
    for adapter, salt, expected_cached in [
        (None, "", 0),
        ("a", "", 0),
        ("b", "", 0),
        ("a", "", 64),
        (None, "", 64),
        ("a", "tenant 1", 0),
        ("a", "tenant 2", 0),
        ("a", "tenant 1", 64),
        ("b", "", 64),
    ]:
        request_id = warm.submit(PROMPT, greedy(8), adapter, salt)
        warm.drain()
        assert warm.num_cached(request_id) == expected_cached, (adapter, salt)
        assert warm.tokens(request_id) == cold.ask(PROMPT, greedy(8), adapter, salt)


@pytest.mark.case("C63")
def test_a_new_version_under_an_old_name_starts_with_a_cold_prefix(
    base: Path, paths: dict[str, Path]
) -> None:
    user = make_client(base, paths, names="")
    fresh = make_client(base, paths, names="ab")
    expected = {name: fresh.ask(PROMPT, greedy(8), name) for name in "ab"}
    for version in "aba":
        user.engine.load_adapter("bot", str(paths[version]))
        assert user.ask(PROMPT, greedy(8), "bot") == expected[version]
        assert user.ask(PROMPT, greedy(8), "bot") == expected[version]
        user.engine.unload_adapter("bot")


def test_loading_twice_is_one_adapter_and_a_name_keeps_its_bytes(
    base: Path, paths: dict[str, Path]
) -> None:
    engine = make_engine(base)
    first = engine.load_adapter("x", str(paths["a"]))
    assert engine.load_adapter("x", str(paths["a"])) == first
    assert engine.load_adapter("y", str(paths["a"])).digest == first.digest
    with pytest.raises(EngineError) as refused:
        engine.load_adapter("x", str(paths["b"]))
    assert refused.value.code is ErrorCode.ADAPTER_CONFLICT
    assert [info.name for info in engine.state().adapters] == ["x", "y"]


@pytest.mark.case("C75")
def test_many_loads_at_once_are_one_read(base: Path, paths: dict[str, Path]) -> None:
    engine = make_engine(base)
    found: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(engine.load_adapter("x", str(paths["a"])).digest)
        )
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 20 and len(set(found)) == 1
    engine.check_integrity()


@pytest.mark.case("C75")
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_many_first_requests_are_one_load(
    base: Path, paths: dict[str, Path], is_on_disk: bool
) -> None:
    """Wherever it lies: all are answered by it."""
    # Room for one on the host: the second that is loaded sends the first back to disk.
    config = {"host_adapter_bytes": 1, "max_lora_rank": 16} if is_on_disk else {}
    user = make_client(base, paths, max_num_seqs=64, **config)
    tiers = {info.name: info.tier for info in user.engine.state().adapters}
    assert tiers["a"] == ("disk" if is_on_disk else "host")
    ids = [user.submit(PROMPT, greedy(4), "a", salt=str(number)) for number in range(50)]
    deadline = time.monotonic() + 30
    while not all(map(user.terminal, ids)) and time.monotonic() < deadline:
        user.step()
    assert user.engine.stats().num_adapter_loads == 1
    alone = make_client(base, paths).ask(PROMPT, greedy(4), "a")
    assert {tuple(user.tokens(each)) for each in ids} == {tuple(alone)}


def test_an_invalid_adapter_is_refused_with_its_reasons(base: Path, tmp_path: Path) -> None:
    engine = make_engine(base, max_lora_rank=8)
    other = make_base(tmp_path / "other", hidden_size=32, num_attention_heads=2, head_dim=16)
    with pytest.raises(EngineError) as wrong_shape:
        engine.load_adapter("x", str(make_adapter(tmp_path / "shape", other)))
    assert wrong_shape.value.code is ErrorCode.INVALID_ADAPTER
    with pytest.raises(EngineError) as too_high:
        engine.load_adapter("x", str(make_adapter(tmp_path / "rank", base, r=9)))
    assert "9" in too_high.value.message
    with pytest.raises(EngineError) as absent:
        engine.load_adapter("x", str(tmp_path / "absent"))
    assert absent.value.code is ErrorCode.INVALID_ADAPTER
    assert engine.state().adapters == ()


@pytest.mark.case("C67")
def test_unload_while_running(base: Path, paths: dict[str, Path]) -> None:
    user = make_client(base, paths)
    expected = user.ask(PROMPT, greedy(12), "a")
    running = [user.submit([*PROMPT, i], greedy(12), "a") for i in range(3)]
    again = user.submit(PROMPT, greedy(12), "a")
    neighbour = user.submit(PROMPT, greedy(12), "b")
    user.step(3)
    digest = user.engine.resolve_adapter("a")
    user.engine.unload_adapter("a")
    with pytest.raises(EngineError):
        user.submit(PROMPT, greedy(3), "a")
    with pytest.raises(EngineError):
        request = GenerateRequest("new", tuple(PROMPT), greedy(3), digest)
        user.engine.submit(request, pytest.fail)
    assert [info.name for info in user.engine.state().adapters] == ["b"]
    user.drain()
    assert user.tokens(again) == expected
    assert all(len(user.tokens(r)) == 12 for r in [*running, neighbour])
    user.engine.load_adapter("a", str(paths["a"]))
    assert user.ask(PROMPT, greedy(12), "a") == expected


@pytest.mark.case("C16")
def test_pages_of_an_evicted_adapter_are_not_read(base: Path, tmp_path: Path) -> None:
    """A loud rank-16 adapter leaves, a quiet rank-1 one of one module takes over its pages."""
    loud = make_adapter(tmp_path / "loud", base, r=16, strength=50.0)
    quiet = make_adapter(tmp_path / "quiet", base, r=1, targets=("o_proj",), layers=(1,), seed=3)
    alone = Client(make_engine(base))
    alone.engine.load_adapter("quiet", str(quiet))
    user = Client(make_engine(base, max_loras_per_batch=1, max_lora_rank=16))
    user.engine.load_adapter("loud", str(loud))
    user.engine.load_adapter("quiet", str(quiet))
    user.ask(PROMPT, greedy(4), "loud")
    user.engine._runner.lora.pages.fill_(7.0)
    assert user.ask(PROMPT, greedy(8), "quiet") == alone.ask(PROMPT, greedy(8), "quiet")


@pytest.mark.case("C76")
def test_an_adapter_whose_files_vanished_fails_and_blocks_nobody(
    base: Path, paths: dict[str, Path], tmp_path: Path
) -> None:
    """It was dropped from host memory and cannot be read again."""
    # Room for one on the host, and for one on the device.
    user = Client(make_engine(base, max_loras_per_batch=1, max_lora_rank=8, host_adapter_bytes=1))
    lost = make_adapter(tmp_path / "lost", base, seed=50)
    user.engine.load_adapter("lost", str(lost))
    user.engine.load_adapter("a", str(paths["a"]))
    user.ask(PROMPT, greedy(2), "a")
    (lost / "adapter_config.json").unlink()
    request_id = user.submit(PROMPT, greedy(4), "lost")
    base_id = user.submit(PROMPT, greedy(4))
    deadline = time.monotonic() + 20
    while not user.terminal(request_id) and time.monotonic() < deadline:
        user.step()
    (event,) = user.events[request_id]
    assert isinstance(event, Failed) and event.code is ErrorCode.INVALID_ADAPTER
    user.drain()
    assert len(user.tokens(base_id)) == 4


def test_adapters_come_back_from_disk(base: Path, paths: dict[str, Path]) -> None:
    """Neither host memory nor device pages hold them all."""
    expected = make_client(base, paths, names="abcdef")
    wanted = {name: expected.ask(PROMPT, greedy(6), name) for name in "abcdef"}
    user = make_client(
        base,
        paths,
        names="abcdef",
        max_loras_per_batch=1,
        max_lora_rank=16,
        host_adapter_bytes=1,
    )
    ids = [(name, user.submit(PROMPT, greedy(6), name)) for name in "abcdef" * 2]
    deadline = time.monotonic() + 60
    while user.engine.state().num_waiting or user.engine.state().num_running:
        assert time.monotonic() < deadline
        user.step()
    for name, request_id in ids:
        assert user.tokens(request_id) == wanted[name]


def test_base_requests_pass_adapters_that_wait(base: Path, paths: dict[str, Path]) -> None:
    user = make_client(base, paths, max_loras_per_batch=1)
    first = user.submit(PROMPT, greedy(30), "a")
    blocked = user.submit(PROMPT, greedy(5), "b")
    passing = user.submit(PROMPT, greedy(5))
    user.step(8)
    assert len(user.tokens(passing)) == 5 and not user.events[blocked]
    user.drain()
    assert len(user.tokens(first)) == 30 and len(user.tokens(blocked)) == 5
