"""Log-probabilities of prompts: those of transformers and PEFT, in any company, in any pieces."""

from pathlib import Path
from typing import Any

import pytest
import torch

import inference.prompt_scores
import inference.results
from inference.errors import EngineError
from inference.request import Failed, Finished, PromptLogprobs, SamplingParams, TokenLogprobs
from tests.inference.driving import PROMPT, Client, greedy, make_client
from tests.inference.oracle import Oracle
from tests.inference.test_prompt_graphs import with_prompt_graphs

NAMES = [None, "a", "b", "a", None]
PROMPTS = [PROMPT, PROMPT[3:60], PROMPT[:33], PROMPT[20:], PROMPT[5:7]]
SCORE = SamplingParams(0, temperature=0.0, num_prompt_logprobs=0)
TOLERANCE = 1e-3
# One row of logits a slice, and two scores an event: pieces everywhere.
PIECES = {"kv_block_size": 4, "max_batch_tokens": 37}


@pytest.fixture(scope="module")
def expected(base: Path, paths: dict[str, Path]) -> list[torch.Tensor]:
    """[T - 1] of each prompt."""
    oracle = Oracle(base, {name: paths[name] for name in "ab"})
    found = []
    for name, prompt in zip(NAMES, PROMPTS, strict=True):
        values = torch.log_softmax(oracle.logits(prompt, name), dim=-1)
        found.append(values[:-1].gather(1, torch.tensor(prompt[1:])[:, None]).squeeze(1))
    return found


def scores(user: Client, request_id: str) -> list[TokenLogprobs]:
    events = [e for e in user.events[request_id] if isinstance(e, PromptLogprobs)]
    return [one for event in events for one in event.logprobs]


def values(found: list[TokenLogprobs]) -> torch.Tensor:
    return torch.tensor([one.logprob for one in found])


def submit_all(user: Client, params: SamplingParams = SCORE) -> list[str]:
    return [user.submit(p, params, name) for p, name in zip(PROMPTS, NAMES, strict=True)]


def assert_scored(user: Client, ids: list[str], expected: list[torch.Tensor]) -> None:
    for request_id, want in zip(ids, expected, strict=True):
        torch.testing.assert_close(
            values(scores(user, request_id)), want, atol=TOLERANCE, rtol=TOLERANCE
        )


@pytest.mark.case("C96")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("config", [{}, PIECES], ids=["whole", "pieces"])
def test_the_scores_of_peft(
    base: Path,
    paths: dict[str, Path],
    expected: list[torch.Tensor],
    config: dict[str, Any],
    overlap: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if config:
        monkeypatch.setattr(inference.prompt_scores, "SLICE_BYTES", 1)
        monkeypatch.setattr(inference.results, "MAX_SCORES", 2)
    user = make_client(base, paths, overlap=overlap, **config)
    # Others decode beside them, with tokens of their own.
    other = user.submit(PROMPT[:9], greedy(12), "b")
    user.step(2)
    ids = submit_all(user)
    user.drain()
    assert_scored(user, ids, expected)
    assert all(user.terminal(each) == [Finished(each, "length")] for each in ids)
    assert all(user.tokens(each) == [] for each in ids)
    assert user.tokens(other) == make_client(base, paths).ask(PROMPT[:9], greedy(12), "b")


def test_from_graphs_with_prompts(
    base: Path, paths: dict[str, Path], expected: list[torch.Tensor]
) -> None:
    user = with_prompt_graphs(base, paths, 512, max_num_seqs=6, max_batch_tokens=50)
    ids = submit_all(user)
    user.drain()
    assert_scored(user, ids, expected)
    assert set(user.engine.stats().steps_by_path) == {"prompt graph"}


def test_then_the_answer_goes_on_and_cached_blocks_are_not_used(
    base: Path, paths: dict[str, Path], expected: list[torch.Tensor]
) -> None:
    user = make_client(base, paths, kv_block_size=4)
    plain = user.ask(PROMPT, greedy(8))
    request_id = user.submit(PROMPT, greedy(8, num_prompt_logprobs=3))
    user.drain()
    assert user.tokens(request_id) == plain
    assert user.num_cached(request_id) == 0
    found = scores(user, request_id)
    torch.testing.assert_close(values(found), expected[0], atol=TOLERANCE, rtol=TOLERANCE)
    for one in found:
        likelihoods = [value for _, value in one.top]
        assert len(likelihoods) == 3 and likelihoods == sorted(likelihoods, reverse=True)
        assert one.logprob <= likelihoods[0] + 1e-6
    # What it computed is there for others, as ever.
    again = user.submit(PROMPT, greedy(1))
    user.drain()
    assert user.num_cached(again) >= 64


@pytest.mark.parametrize("overlap", [False, True])
def test_a_preempted_prompt_is_scored_once(
    base: Path, paths: dict[str, Path], expected: list[torch.Tensor], overlap: bool
) -> None:
    """Room for less than all of them: whoever is sent back goes on where its scores ended."""
    tight = {"kv_block_size": 4, "max_batch_tokens": 16, "kv_cache_bytes": 26 * 4 * 2 * 2 * 2 * 64}
    user = make_client(base, paths, overlap=overlap, max_model_len=96, **tight)
    others = [user.submit(PROMPT[i : i + 20], greedy(40), "ab"[i % 2]) for i in range(2)]
    user.step(4)
    ids = submit_all(user, greedy(6, num_prompt_logprobs=0))
    user.drain()
    assert user.engine.stats().num_preemptions > 0
    assert_scored(user, ids, expected)
    assert all(len(user.tokens(each)) == 40 for each in others)


def test_one_token_and_a_full_context(base: Path, paths: dict[str, Path]) -> None:
    user = make_client(base, paths, max_model_len=64)
    one, full = user.submit([7], SCORE, "a"), user.submit(PROMPT[:64], SCORE, "a")
    user.drain()
    assert scores(user, one) == [] and user.terminal(one) == [Finished(one, "length")]
    assert len(scores(user, full)) == 63
    for prompt, params in ((PROMPT[:65], SCORE), (PROMPT[:64], greedy(1, num_prompt_logprobs=0))):
        with pytest.raises(EngineError, match="the context holds 64"):
            user.submit(prompt, params)
    with pytest.raises(EngineError, match="max_tokens must be from 1"):
        user.submit(PROMPT[:9], SamplingParams(0))
    with pytest.raises(EngineError, match="num_prompt_logprobs must be from 0"):
        user.submit(PROMPT[:9], SamplingParams(0, num_prompt_logprobs=-1))


def test_a_prompt_that_is_not_finite_fails_alone(
    base: Path, paths: dict[str, Path], expected: list[torch.Tensor]
) -> None:
    user = make_client(base, paths)
    weights = user.engine._runner.model.weights
    # Of a token that no other prompt has.
    weights.embed[257] = float("nan")
    bad = user.submit([5, 257, 6, 7], SCORE, "a")
    ids = submit_all(user)
    user.drain()
    (end,) = user.terminal(bad)
    assert isinstance(end, Failed) and "not finite" in end.message
    assert_scored(user, ids, expected)
