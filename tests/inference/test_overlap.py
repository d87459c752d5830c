"""Steps that are launched before the tokens of the one before are known: the same answers.

On the CPU the same loop runs, so that whoever ended, was preempted or drew nothing while the next
step was on its way is seen here; tests with a GPU run it on streams and graphs.
"""

import random
from pathlib import Path
from typing import Any

import pytest

from inference.request import Aborted, Constraint, Failed, Finished, SamplingParams
from inference.sequence import UNKNOWN
from tests.inference.constraining import held_to, make_patient, text_of
from tests.inference.driving import PROMPT, Client, greedy, make_client
from tests.inference.test_decode_graphs import answers, use_graph_inputs

TIGHT = {"max_num_seqs": 6, "kv_cache_bytes": 96 << 10, "prefix_cache": False}


def overlapping(base: Path, paths: dict[str, Path], **config: Any) -> Client:
    return make_client(base, paths, "abc", overlap=True, **config)


@pytest.mark.parametrize("uses_graph_inputs", [False, True], ids=["op by op", "graph inputs"])
@pytest.mark.parametrize(
    "config",
    [{"max_num_seqs": 6}, {"max_num_seqs": 3}, TIGHT, {"max_batch_tokens": 7, "kv_block_size": 4}],
    ids=["together", "fewer rows", "preempted", "small chunks"],
)
def test_the_same_tokens_as_one_step_after_another(
    base: Path, paths: dict[str, Path], config: dict[str, Any], uses_graph_inputs: bool
) -> None:
    max_tokens = [90, 80, 70, 90, 60, 50] if config is TIGHT else [30, 4, 19, 40, 1, 25]
    want = answers(make_client(base, paths, "abc", overlap=False, **config), max_tokens)
    user = overlapping(base, paths, **config)
    if uses_graph_inputs:
        use_graph_inputs(user.engine)
    assert answers(user, max_tokens) == want
    assert (user.engine.stats().num_preemptions > 0) is (config is TIGHT)


def test_the_next_step_is_launched_before_tokens_are_read(
    base: Path, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    user = overlapping(base, paths)
    calls: list[str] = []
    runner = user.engine._runner
    for name in ("launch", "sample", "collect"):
        call = getattr(runner, name)

        def noted(value: Any, name: str = name, call: Any = call) -> Any:
            calls.append(name)
            return call(value)

        monkeypatch.setattr(runner, name, noted)
    assert len(user.ask(PROMPT, greedy(3), "a")) == 3
    step = ["launch", "collect", "sample"]
    assert calls == ["launch", "sample", *step, *step, "collect"]


def test_no_step_is_launched_behind_a_last_token(base: Path, paths: dict[str, Path]) -> None:
    user = overlapping(base, paths)
    user.ask(PROMPT[:5], greedy(6))
    assert user.engine.stats().num_steps == 6
    long = overlapping(base, paths, max_model_len=20)
    assert len(long.ask(PROMPT[:15], greedy(5))) == 5
    assert long.engine.stats().num_steps == 5


def options(chance: random.Random, stops: list[int]) -> SamplingParams:
    """Everything that chooses a token by those before it, or ends an answer early."""
    some: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
        {"temperature": 0.0, "presence_penalty": 1.5, "logit_bias": ((7, 2.0), (9, 1.0))},
        {"temperature": 0.9, "seed": chance.randrange(100)},
        # Nearly flat, so that more is kept than there are candidates; a tiny vocabulary has few.
        {"temperature": 50.0, "seed": chance.randrange(100), "top_p": 0.999},
        {"temperature": 1.1, "seed": chance.randrange(100), "top_k": 5, "min_p": 0.01},
        {"temperature": 0.0, "stop_token_ids": tuple(stops), "min_tokens": 3},
    ]
    return SamplingParams(chance.randrange(1, 72), ignore_eos=True, **chance.choice(some))


@pytest.mark.parametrize("seed", range(2))
def test_any_traffic_gives_the_same_answers(
    base: Path, paths: dict[str, Path], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.sampler.NUM_CANDIDATES", 64)
    found = []
    for overlap in (False, True):
        chance = random.Random(seed)
        config: dict[str, Any] = {"max_num_seqs": 5, "max_batch_tokens": 40, "max_model_len": 128}
        config |= {"max_loras_per_batch": 4, "kv_cache_bytes": 10 * 2 * 2 * 16 * 2 * 16 * 4}
        user = make_client(base, paths, "abcdef", overlap=overlap, **config)
        ids = []
        for number in range(30):
            prompt = [number, *PROMPT[: chance.choice([1, 15, 16, 17, 33])]]
            adapter = chance.choice([None, *"abcdef"])
            stops = chance.sample(range(256), 20)
            ids.append(user.submit(prompt, options(chance, stops), adapter))
            user.step(chance.randrange(3))
        user.drain()
        ends = [user.terminal(i) for i in ids]
        assert all(len(events) == 1 and isinstance(events[0], Finished) for events in ends)
        found.append([(user.tokens(i), user.terminal(i)) for i in ids])
        assert user.engine.stats().num_preemptions > 0
        state = user.engine.state()
        assert state.num_free_kv_blocks == state.num_kv_blocks
        assert all(info.num_leases == 0 for info in state.adapters)
    assert found[0] == found[1]
    assert any(event.reason == "stop" for _, (event,) in found[0] if isinstance(event, Finished))


def test_a_token_too_many_candidates_is_drawn_again(
    base: Path, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.sampler.NUM_CANDIDATES", 8)
    params = SamplingParams(12, temperature=30.0, top_p=0.99, seed=3, ignore_eos=True)
    want = make_client(base, paths, "abc", overlap=False).ask(PROMPT, params, "a")
    user = overlapping(base, paths)
    beside = user.submit(PROMPT, greedy(12), "b")
    assert user.ask(PROMPT, params, "a") == want and len(set(want)) > 8
    assert user.tokens(beside) == make_client(base, paths, "abc").ask(PROMPT, greedy(12), "b")
    # The first draw was in vain, and the step that was on its way by then.
    assert user.engine.stats().num_steps == 14


def test_an_abort_while_a_step_is_on_its_way(base: Path, paths: dict[str, Path]) -> None:
    user = overlapping(base, paths)
    want = make_client(base, paths, "abc").ask(PROMPT, greedy(20), "b")
    gone = user.submit(PROMPT, greedy(20), "a")
    stays = user.submit(PROMPT, greedy(20), "b")
    user.step(5)
    (sequence,) = [s for s in user.engine._scheduler if s.request_id == gone]
    assert sequence.tokens[-1] == UNKNOWN
    user.engine.abort(gone)
    before = len(user.tokens(gone))
    user.drain()
    assert user.terminal(gone) == [Aborted(gone)] and len(user.tokens(gone)) == before
    assert user.tokens(stays) == want


def test_logits_that_are_not_finite_end_one_request(base: Path, paths: dict[str, Path]) -> None:
    user = overlapping(base, paths)
    want = make_client(base, paths, "abc").ask(PROMPT, greedy(12), "a")
    good, bad = (user.submit(PROMPT, greedy(12), name) for name in "ab")
    user.step(4)
    (slot,) = [a.slot for a in user.engine._scheduler.adapters if "b" in a.names]
    user.engine._runner.lora._scales[slot].fill_(float("nan"))
    user.engine._runner.lora._digests[slot] = "rewritten"
    user.drain()
    assert user.tokens(good) == want
    assert [type(event) for event in user.terminal(bad)] == [Failed]


@pytest.mark.parametrize("name", ["launch", "sample", "collect"])
def test_a_step_that_fails_ends_its_requests_once(
    base: Path, paths: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = overlapping(base, paths)
    ids = [user.submit([number, *PROMPT], greedy(9), "a") for number in range(3)]
    user.step(3)
    with monkeypatch.context() as patch:

        def fail(*_: object) -> None:
            raise RuntimeError("out of memory")

        patch.setattr(user.engine._runner, name, fail)
        user.step()
    user.drain()
    assert [[type(e) for e in user.terminal(i)] for i in ids] == [[Failed]] * 3
    assert user.ask(PROMPT, greedy(4), "a") == make_client(base, paths).ask(PROMPT, greedy(4), "a")


def test_a_grammar_sees_every_token_before(base: Path, paths: dict[str, Path]) -> None:
    constraint = Constraint("regex", "[ab]{3}(cd|ef){4}")
    found = []
    for overlap in (False, True):
        user = make_patient(base, paths, overlap=overlap)
        ids = [user.submit(PROMPT[:n], held_to(constraint, seed=n), "a") for n in (3, 5, 9)]
        beside = user.submit(PROMPT, greedy(30), "b")
        user.drain()
        found.append([user.tokens(i) for i in (*ids, beside)])
    assert found[0] == found[1]
    assert all(len(text_of(tokens)) == 11 for tokens in found[1][:3])


def test_on_the_cpu_tokens_do_not_wait_for_the_next_step(base: Path) -> None:
    user = make_client(base, {}, "")
    request_id = user.submit(PROMPT, greedy(3))
    user.step()
    assert len(user.tokens(request_id)) == 1
