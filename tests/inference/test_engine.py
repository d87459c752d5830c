"""The engine whole: events, refusals, isolation, life cycle of adapters, failures."""

import random
import threading
import time
from pathlib import Path

import pytest
import torch

from inference import Engine
from inference.errors import EngineError, ErrorCode
from inference.request import (
    Aborted,
    Failed,
    Finished,
    GenerateRequest,
    SamplingParams,
    Token,
)
from tests.inference.driving import Client, greedy, make_engine
from tests.tiny import EOS_TOKEN_ID, make_adapter, make_base

PROMPT = [(3 * i * i + 5) % 256 for i in range(70)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("engine") / "base")


@pytest.fixture(scope="module")
def paths(base: Path) -> dict[str, Path]:
    return {
        name: make_adapter(base.parent / name, base, r=8 * (1 + seed % 2), seed=seed)
        for seed, name in enumerate("abcdef")
    }


def client(base: Path, paths: dict[str, Path], names: str = "ab", **config: int) -> Client:
    made = Client(make_engine(base, **config))
    for name in names:
        made.engine.load_adapter(name, str(paths[name]))
    return made


def test_it_works(base: Path, paths: dict[str, Path]) -> None:
    user = client(base, paths)
    request_id = user.submit(PROMPT, greedy(5), "a")
    user.drain()
    *tokens, last = user.events[request_id]
    assert [type(event) for event in tokens] == [Token] * 5
    assert last == Finished(request_id, "length")


def test_the_stop_token_is_the_last_token(base: Path, paths: dict[str, Path]) -> None:
    user = client(base, paths)
    free = user.ask(PROMPT, greedy(12))
    stop = free[7]
    request_id = user.submit(PROMPT, greedy(12, stop_token_ids=(stop,)))
    user.drain()
    assert user.tokens(request_id) == free[: free.index(stop) + 1]
    assert user.terminal(request_id) == [Finished(request_id, "stop")]


def test_eos_ends_unless_ignored_and_not_before_min_tokens(
    base: Path, paths: dict[str, Path]
) -> None:
    user = client(base, paths)
    wants_eos = ((EOS_TOKEN_ID, 100.0),)
    plain = SamplingParams(6, temperature=0.0, logit_bias=wants_eos)
    assert user.ask(PROMPT, plain) == [EOS_TOKEN_ID]
    assert user.ask(PROMPT, greedy(6, logit_bias=wants_eos)) == [EOS_TOKEN_ID] * 6
    late = SamplingParams(6, temperature=0.0, logit_bias=wants_eos, min_tokens=3)
    tokens = user.ask(PROMPT, late)
    assert len(tokens) == 4 and tokens.index(EOS_TOKEN_ID) == 3


def test_the_model_length_ends_a_sequence(base: Path, paths: dict[str, Path]) -> None:
    user = client(base, paths, max_model_len=80)
    request_id = user.submit(PROMPT, greedy(500))
    user.drain()
    assert len(user.tokens(request_id)) == 10
    assert user.terminal(request_id) == [Finished(request_id, "length")]


@pytest.mark.case("C82")
@pytest.mark.parametrize(
    ("token_ids", "params", "code", "param"),
    [
        ([], {}, ErrorCode.INVALID_REQUEST, "prompt"),
        ([1] * 80, {}, ErrorCode.CONTEXT_LENGTH_EXCEEDED, "prompt"),
        ([999_999], {}, ErrorCode.INVALID_REQUEST, "prompt"),
        ([-1], {}, ErrorCode.INVALID_REQUEST, "prompt"),
        ([1], {"stop_token_ids": (999_999,)}, ErrorCode.INVALID_REQUEST, "stop_token_ids"),
        ([1], {"logit_bias": ((-1, 5.0),)}, ErrorCode.INVALID_REQUEST, "logit_bias"),
        ([1], {"logit_bias": ((1, float("nan")),)}, ErrorCode.INVALID_REQUEST, "logit_bias"),
        ([1], {"max_tokens": 0}, ErrorCode.INVALID_REQUEST, "max_tokens"),
        ([1], {"temperature": float("nan")}, ErrorCode.INVALID_REQUEST, "temperature"),
        ([1], {"top_p": 1.5}, ErrorCode.INVALID_REQUEST, "top_p"),
    ],
)
def test_what_could_harm_others_is_refused_at_the_door(
    base: Path,
    token_ids: list[int],
    params: dict[str, object],
    code: ErrorCode,
    param: str,
) -> None:
    engine = make_engine(base, max_model_len=80)
    sampling = SamplingParams(**({"max_tokens": 4} | params))  # type: ignore[arg-type]
    with pytest.raises(EngineError) as refused:
        engine.submit(GenerateRequest("r", tuple(token_ids), sampling), pytest.fail)
    assert (refused.value.code, refused.value.param) == (code, param)
    assert engine.step() is False


@pytest.mark.case("C79")
def test_a_live_request_id_cannot_be_taken(base: Path, paths: dict[str, Path]) -> None:
    user = client(base, paths)
    request_id = user.submit(PROMPT, greedy(3))
    with pytest.raises(EngineError, match="in use"):
        user.engine.submit(GenerateRequest(request_id, (1,), greedy(3)), pytest.fail)
    user.drain()
    assert len(user.tokens(request_id)) == 3


def test_an_unknown_adapter_is_refused_never_answered_by_the_base(base: Path) -> None:
    engine = make_engine(base)
    with pytest.raises(EngineError) as refused:
        engine.submit(GenerateRequest("r", (1,), greedy(3), digest="0" * 64), pytest.fail)
    assert refused.value.code is ErrorCode.MODEL_NOT_FOUND
    with pytest.raises(EngineError) as unresolved:
        engine.resolve_adapter("nobody")
    assert unresolved.value.code is ErrorCode.MODEL_NOT_FOUND


@pytest.mark.case("C65")
def test_prefix_cache_never_crosses_adapters_or_salts(base: Path, paths: dict[str, Path]) -> None:
    cold = Client(make_engine(base, prefix_cache=False))
    warm = client(base, paths)
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
    user = client(base, paths, names="")
    fresh = client(base, paths, names="ab")
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
    user = client(base, paths)
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


def test_non_finite_logits_fail_only_their_request(base: Path, tmp_path: Path) -> None:
    broken = make_adapter(tmp_path / "broken", base, r=4, strength=1e37)
    good = make_adapter(tmp_path / "good", base, r=4, seed=9)
    alone = Client(make_engine(base))
    alone.engine.load_adapter("good", str(good))
    user = Client(make_engine(base))
    user.engine.load_adapter("broken", str(broken))
    user.engine.load_adapter("good", str(good))
    others = [user.submit(PROMPT, greedy(8)), user.submit(PROMPT, greedy(8), "good")]
    bad = user.submit(PROMPT, greedy(8), "broken")
    user.drain()
    (event,) = user.events[bad]
    assert isinstance(event, Failed) and event.code is ErrorCode.NON_FINITE_LOGITS
    assert user.tokens(others[0]) == alone.ask(PROMPT, greedy(8))
    assert user.tokens(others[1]) == alone.ask(PROMPT, greedy(8), "good")
    # The blocks that held its NaN are used again.
    for i in range(3):
        assert user.ask([*PROMPT, i], greedy(8)) == alone.ask([*PROMPT, i], greedy(8))


def test_a_failing_step_ends_its_requests_and_nothing_else(
    base: Path, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    user = client(base, paths)
    request_id = user.submit(PROMPT, greedy(4), "a")
    with monkeypatch.context() as patch:

        def fail(*_: object) -> torch.Tensor:
            raise RuntimeError("out of memory")

        patch.setattr(user.engine._runner.model, "forward", fail)
        user.step()
    (event,) = user.events[request_id]
    assert isinstance(event, Failed) and event.code is ErrorCode.INTERNAL
    assert len(user.ask(PROMPT, greedy(4), "a")) == 4


def test_a_failing_listener_does_not_stop_the_others(base: Path) -> None:
    user = Client(make_engine(base))

    def broken(_: object) -> None:
        raise RuntimeError("listener")

    user.engine.submit(GenerateRequest("x", (1, 2), greedy(3)), broken)
    assert len(user.ask(PROMPT, greedy(3))) == 3


@pytest.mark.case("C76")
def test_an_adapter_whose_files_vanished_fails_and_blocks_nobody(
    base: Path, paths: dict[str, Path], tmp_path: Path
) -> None:
    """It was dropped from host memory and cannot be read again."""
    user = Client(make_engine(base, max_loras_per_batch=1, host_adapter_bytes=1))
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
    expected = client(base, paths, names="abcdef")
    wanted = {name: expected.ask(PROMPT, greedy(6), name) for name in "abcdef"}
    user = client(base, paths, names="abcdef", max_loras_per_batch=1, host_adapter_bytes=1)
    ids = [(name, user.submit(PROMPT, greedy(6), name)) for name in "abcdef" * 2]
    deadline = time.monotonic() + 60
    while user.engine.state().num_waiting or user.engine.state().num_running:
        assert time.monotonic() < deadline
        user.step()
    for name, request_id in ids:
        assert user.tokens(request_id) == wanted[name]


def test_base_requests_pass_adapters_that_wait(base: Path, paths: dict[str, Path]) -> None:
    user = client(base, paths, max_loras_per_batch=1)
    first = user.submit(PROMPT, greedy(30), "a")
    blocked = user.submit(PROMPT, greedy(5), "b")
    passing = user.submit(PROMPT, greedy(5))
    user.step(8)
    assert len(user.tokens(passing)) == 5 and not user.events[blocked]
    user.drain()
    assert len(user.tokens(first)) == 30 and len(user.tokens(blocked)) == 5


@pytest.mark.parametrize("seed", range(4))
def test_any_mix_of_requests_and_aborts_ends_each_exactly_once(
    base: Path, paths: dict[str, Path], seed: int
) -> None:
    chance = random.Random(seed)
    block_bytes = 2 * 2 * 16 * 2 * 16 * 4
    user = client(
        base,
        paths,
        names="abcdef",
        max_loras_per_batch=2,
        max_num_seqs=5,
        max_batch_tokens=40,
        kv_cache_bytes=16 * block_bytes,
        max_model_len=96,
    )
    ids: list[str] = []
    for _ in range(60):
        for _ in range(chance.randrange(3)):
            prompt = PROMPT[: chance.choice([1, 15, 16, 17, 33, 64])]
            params = greedy(chance.randrange(1, 12))
            adapter = chance.choice([None, *"abcdef"])
            ids.append(user.submit(prompt, params, adapter, chance.choice(["", "salt"])))
        if ids and chance.random() < 0.3:
            user.engine.abort(chance.choice(ids))
        user.step()
    user.drain()
    assert len(ids) > 30
    for request_id in ids:
        assert len(user.terminal(request_id)) == 1, request_id
        assert user.events[request_id][-1] in user.terminal(request_id)
    stats = user.engine.stats()
    assert stats.num_finished + stats.num_aborted == len(ids)
    state = user.engine.state()
    assert state.num_free_kv_blocks == state.num_kv_blocks
    assert all(info.num_leases == 0 for info in state.adapters)


def test_the_loop_thread_serves_and_stop_ends_what_is_left(
    base: Path, paths: dict[str, Path]
) -> None:
    user = client(base, paths)
    loop = threading.Thread(target=user.engine.run)
    loop.start()
    quick = user.submit(PROMPT, greedy(3), "a")
    gone = user.submit(PROMPT, greedy(400))
    cut = user.submit(PROMPT, greedy(400))
    wait_until(lambda: bool(user.terminal(quick)))
    user.engine.abort(gone)
    wait_until(lambda: bool(user.terminal(gone)))
    user.engine.stop()
    loop.join(30)
    assert not loop.is_alive()
    assert user.terminal(gone) == [Aborted(gone)]
    assert len(user.terminal(cut)) == 1
    with pytest.raises(EngineError) as refused:
        user.submit(PROMPT, greedy(3))
    assert refused.value.code is ErrorCode.OVERLOADED


def wait_until(condition: object, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_what_was_counted(base: Path, paths: dict[str, Path]) -> None:
    user = client(base, paths)
    user.ask(PROMPT, greedy(4), "a")
    user.ask(PROMPT, greedy(4), "a")
    stats = user.engine.stats()
    assert (stats.num_adapter_misses, stats.num_adapter_hits) == (1, 1)
    assert (stats.num_prompt_tokens, stats.num_cached_tokens) == (140, 64)
    assert stats.num_output_tokens == 8
    assert stats.num_lora_requests == 2
    assert 0 < stats.lora_request_ms_total <= stats.lora_ms_total < stats.step_ms_total


def test_an_engine_that_cannot_be_is_refused(base: Path) -> None:
    for config in ({"tp": 2}, {"max_lora_rank": 0}, {"max_model_len": 100_000}):
        with pytest.raises(EngineError, match=next(iter(config))):
            make_engine(base, **config)


def test_offline_generate(base: Path, paths: dict[str, Path]) -> None:
    engine: Engine = client(base, paths).engine
    one, two = engine.generate([PROMPT, PROMPT], greedy(5), [None, "a"])
    assert len(one) == len(two) == 5 and one != two
