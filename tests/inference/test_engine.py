"""The engine whole: events, refusals, failures, the loop, what is counted."""

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
from tests.inference.driving import PROMPT, Client, greedy, make_client, make_engine
from tests.tiny import EOS_TOKEN_ID, make_adapter


def test_it_works(base: Path, paths: dict[str, Path]) -> None:
    user = make_client(base, paths)
    request_id = user.submit(PROMPT, greedy(5), "a")
    user.drain()
    *tokens, last = user.events[request_id]
    assert [type(event) for event in tokens] == [Token] * 5
    assert last == Finished(request_id, "length")


def test_the_stop_token_is_the_last_token(base: Path, paths: dict[str, Path]) -> None:
    user = make_client(base, paths)
    free = user.ask(PROMPT, greedy(12))
    stop = free[7]
    request_id = user.submit(PROMPT, greedy(12, stop_token_ids=(stop,)))
    user.drain()
    assert user.tokens(request_id) == free[: free.index(stop) + 1]
    assert user.terminal(request_id) == [Finished(request_id, "stop")]


def test_eos_ends_unless_ignored_and_not_before_min_tokens(
    base: Path, paths: dict[str, Path]
) -> None:
    user = make_client(base, paths)
    wants_eos = ((EOS_TOKEN_ID, 100.0),)
    plain = SamplingParams(6, temperature=0.0, logit_bias=wants_eos)
    assert user.ask(PROMPT, plain) == [EOS_TOKEN_ID]
    assert user.ask(PROMPT, greedy(6, logit_bias=wants_eos)) == [EOS_TOKEN_ID] * 6
    late = SamplingParams(6, temperature=0.0, logit_bias=wants_eos, min_tokens=3)
    tokens = user.ask(PROMPT, late)
    assert len(tokens) == 4 and tokens.index(EOS_TOKEN_ID) == 3


def test_the_model_length_ends_a_sequence(base: Path, paths: dict[str, Path]) -> None:
    user = make_client(base, paths, max_model_len=80)
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
    user = make_client(base, paths)
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


@pytest.mark.case("C46")
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
    user = make_client(base, paths)
    request_id = user.submit(PROMPT, greedy(4), "a")
    with monkeypatch.context() as patch:

        def fail(*_: object) -> torch.Tensor:
            raise RuntimeError("out of memory")

        patch.setattr(user.engine._runner.model, "stream", fail)
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


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_any_mix_of_requests_and_aborts_ends_each_exactly_once(
    base: Path, paths: dict[str, Path], seed: int, overlap: bool
) -> None:
    chance = random.Random(seed)
    block_bytes = 2 * 2 * 16 * 2 * 16 * 4
    user = make_client(
        base,
        paths,
        names="abcdef",
        overlap=overlap,
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
    user = make_client(base, paths)
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


def test_a_loop_that_breaks_leaves_nobody_waiting(
    base: Path, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    user = make_client(base, paths)
    request_id = user.submit(PROMPT, greedy(4), "a")

    def broken() -> None:
        raise RuntimeError("planning failed")

    monkeypatch.setattr(user.engine._scheduler, "schedule", broken)
    with pytest.raises(RuntimeError, match="planning failed"):
        user.engine.run()
    assert user.events[request_id] == [Aborted(request_id)]
    with pytest.raises(EngineError):
        user.submit(PROMPT, greedy(3))


def test_books_that_do_not_add_up_end_a_loop_at_rest(base: Path) -> None:
    """Nobody is in it then; the next request could be given a block that is another's."""
    user = Client(make_engine(base))
    cache = user.engine._scheduler.cache
    failures: list[AssertionError] = []

    def run() -> None:
        try:
            user.engine.run()
        except AssertionError as error:
            failures.append(error)

    loop = threading.Thread(target=run)
    loop.start()
    first = user.submit(PROMPT, greedy(3))
    wait_until(lambda: bool(user.terminal(first)))
    time.sleep(1.2)
    assert loop.is_alive()
    lost = cache._free.pop()
    second = user.submit(PROMPT, greedy(3))
    wait_until(lambda: bool(user.terminal(second)))
    loop.join(30)
    cache._free.append(lost)
    assert [str(error) for error in failures] == ["a block is lost"]


def wait_until(condition: object, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_what_was_counted(base: Path, paths: dict[str, Path]) -> None:
    user = make_client(base, paths)
    user.ask(PROMPT, greedy(4), "a")
    user.ask(PROMPT, greedy(4), "a")
    stats = user.engine.stats()
    assert (stats.num_adapter_misses, stats.num_adapter_hits) == (1, 1)
    assert (stats.num_prompt_tokens, stats.num_cached_tokens) == (140, 64)
    assert stats.num_output_tokens == 8
    assert stats.queue_times["normal"].num_admitted == 2
    assert 0 < stats.queue_times["normal"].total_s < stats.step_ms_total
    assert stats.queue_times["heavy"].num_admitted == 0
    assert stats.num_lora_requests == 2
    assert 0 < stats.lora_request_ms_total <= stats.lora_ms_total < stats.step_ms_total


def test_an_engine_that_cannot_be_is_refused(base: Path) -> None:
    for config in ({"tp": 2}, {"max_lora_rank": 0}, {"max_model_len": 100_000}):
        with pytest.raises(EngineError, match=next(iter(config))):
            make_engine(base, **config)


def test_offline_generate(base: Path, paths: dict[str, Path]) -> None:
    engine: Engine = make_client(base, paths).engine
    one, two = engine.generate([PROMPT, PROMPT], greedy(5), [None, "a"])
    assert len(one) == len(two) == 5 and one != two
