"""Choosing tokens: exact for greedy, distributions for the rest, and no influence of neighbours."""

import random
from collections import Counter
from typing import Any

import pytest
import torch

from inference.adjust import adjusted
from inference.request import GenerateRequest, SamplingParams
from inference.sampler import Sampled, Sampler
from inference.sequence import Sequence

VOCAB = 1000
EOS = 7


def sequence(prompt: tuple[int, ...] = (1, 2), seed: int = 0, **params: Any) -> Sequence:
    values: dict[str, Any] = {"max_tokens": 100, "temperature": 1.0} | params
    request = GenerateRequest("r", prompt, SamplingParams(**values))
    return Sequence(request, lambda _: None, random.Random(seed), 0.0)


def sample(logits: torch.Tensor, rows: list[Sequence]) -> list[Sampled]:
    """As the loop does: who drew from too few candidates draws again, from all."""
    found = Sampler((EOS,)).launch(logits, rows).collect()
    for number, (one, result) in enumerate(zip(rows, found, strict=True)):
        if result.is_too_wide:
            assert not one.draws_wide
            one.draws_wide = True
            (found[number],) = sample(logits[number : number + 1], [one])
    return found


def draw(logits: torch.Tensor, one: Sequence, times: int = 1) -> list[int]:
    found = [sample(logits[None], [one])[0].token_id for _ in range(times)]
    assert None not in found
    return [token for token in found if token is not None]


def draw_together(logits: torch.Tensor, num: int, **params: Any) -> list[int | None]:
    """num tokens by a hundred sequences side by side, each of a seed of its own."""
    rows = [sequence(seed=seed, **params) for seed in range(100)]
    every = logits.expand(len(rows), -1)
    return [one.token_id for _ in range(num // len(rows)) for one in sample(every, rows)]


def add(one: Sequence, token_id: int) -> None:
    one.expect(0)
    one.take(token_id)


def peaked() -> torch.Tensor:
    """Probabilities 0.5, 0.3, 0.15, 0.05 for tokens 10..13."""
    logits = torch.full((VOCAB,), -1e9)
    logits[10:14] = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    return logits


def test_greedy_is_argmax() -> None:
    logits = torch.randn(VOCAB)
    assert draw(logits, sequence(temperature=0.0)) == [int(logits.argmax())]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {10: 0.5, 11: 0.3, 12: 0.15, 13: 0.05}),
        ({"top_k": 2}, {10: 0.625, 11: 0.375}),
        ({"top_p": 0.79}, {10: 0.625, 11: 0.375}),
        ({"top_p": 0.81}, {10: 0.526, 11: 0.316, 12: 0.158}),
        ({"min_p": 0.2}, {10: 0.526, 11: 0.316, 12: 0.158}),
        ({"top_k": 3, "top_p": 0.5}, {10: 1.0}),
        ({"top_p": 0.0}, {10: 1.0}),
        ({"temperature": 0.5}, {10: 0.685, 11: 0.247, 12: 0.062, 13: 0.007}),
    ],
)
def test_distribution(params: dict[str, Any], expected: dict[int, float]) -> None:
    num = 3000
    counts = Counter(draw_together(peaked(), num, **params))
    assert set(counts) == set(expected)
    for token, share in expected.items():
        assert counts[token] / num == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize(
    "params", [{"top_p": 0.999}, {"min_p": 1e-9}, {"top_k": 900}, {"top_k": 900, "top_p": 0.99}]
)
def test_wide_filters_see_the_whole_vocabulary(params: dict[str, Any]) -> None:
    """A flat distribution: what is kept does not fit among the likeliest candidates."""
    tokens = draw_together(torch.zeros(VOCAB), 2000, **params)
    assert len(set(tokens)) > 700


def test_a_seed_gives_the_same_tokens_in_any_company() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, VOCAB)
    options: list[dict[str, Any]] = [
        {},
        {"top_p": 0.9},
        {"top_k": 5},
        {"min_p": 0.1, "temperature": 2.0},
        {"temperature": 0.0},
    ]
    alone = [draw(row, sequence(seed=5, **p), 6) for row, p in zip(logits, options, strict=True)]
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1], [3, 1]):
        rows = {i: sequence(seed=5, **options[i]) for i in order}
        for step in range(6):
            found = sample(logits[order], list(rows.values()))
            assert [s.token_id for s in found] == [alone[i][step] for i in order]


def test_penalties_and_bias() -> None:
    logits = torch.zeros(VOCAB)
    logits[[3, 4, 5]] = torch.tensor([2.0, 1.9, 1.8])
    greedy: dict[str, Any] = {"temperature": 0.0}
    assert draw(logits, sequence(prompt=(3,), repetition_penalty=1.2, **greedy)) == [4]
    # Presence and frequency count output only.
    assert draw(logits, sequence(prompt=(3,), presence_penalty=1.0, **greedy)) == [3]
    used = sequence(presence_penalty=0.15, frequency_penalty=0.03, **greedy)
    add(used, 3)
    assert draw(logits, used) == [4]
    assert draw(logits, sequence(logit_bias=((5, 1.0),), **greedy)) == [5]
    assert draw(logits, sequence(logit_bias=((3, -100.0),), **greedy)) == [4]


def test_a_negative_logit_is_pushed_down_by_repetition_penalty() -> None:
    logits = torch.full((VOCAB,), -9.0)
    logits[[3, 4]] = torch.tensor([-1.0, -1.5])
    params: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 2.0}
    assert draw(logits, sequence(prompt=(3,), **params)) == [4]


def test_min_tokens_forbids_eos_and_stop_tokens() -> None:
    logits = torch.zeros(VOCAB)
    logits[EOS], logits[9], logits[20] = 5.0, 4.0, 1.0
    early = sequence(temperature=0.0, min_tokens=2, stop_token_ids=(9,))
    assert draw(logits, early) == [20]
    add(early, 20)
    add(early, 20)
    assert draw(logits, early) == [EOS]


def test_adjusting_one_row_leaves_the_others_alone() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[:, 3] = 1.0
    banned = sequence(temperature=0.0, logit_bias=((3, -100.0), (4, 1.0)))
    found = sample(logits, [banned, sequence(temperature=0.0)])
    assert [s.token_id for s in found] == [4, 3]
    assert logits[0, 3] == 1.0


def test_logprobs_are_the_models_own() -> None:
    logits = torch.randn(VOCAB)
    one = sequence(temperature=0.0, num_logprobs=3, logit_bias=((5, 50.0),))
    (found,) = sample(logits[None], [one])
    values = torch.log_softmax(logits, -1)
    assert found.token_id == 5 and found.logprobs is not None
    assert found.logprobs.logprob == pytest.approx(float(values[5]))
    top, ids = values.topk(3)
    assert [i for i, _ in found.logprobs.top] == ids.tolist()
    assert [p for _, p in found.logprobs.top] == pytest.approx(top.tolist())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_logits_are_told_apart_by_row(bad: float) -> None:
    logits = torch.randn(3, VOCAB)
    logits[1, 5] = bad
    rows = [sequence(temperature=0.0), sequence(top_p=0.9), sequence()]
    found = sample(logits, rows)
    assert [s.token_id is None for s in found] == [False, True, False]


def test_rows_that_are_adjusted_together_are_adjusted_as_alone() -> None:
    torch.manual_seed(1)
    logits = torch.randn(6, VOCAB).round(decimals=1)
    options: list[dict[str, Any]] = [
        {"repetition_penalty": 1.5},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5, "logit_bias": ((3, 2.0), (8, -4.0))},
        {},
        {"min_tokens": 9, "stop_token_ids": (11, 12)},
        {"logit_bias": ((8, 3.5),), "min_tokens": 9, "repetition_penalty": 0.7},
        {"frequency_penalty": -2.0},
    ]
    likely = logits.topk(4).indices.tolist()
    rows = []
    for some, ids in zip(options, likely, strict=True):
        rows.append(sequence(temperature=0.0, prompt=tuple(ids[:2]), **some))
        for token_id in (ids[0], ids[2], ids[2], 8):
            add(rows[-1], token_id)
    together = adjusted(logits, rows, (EOS,))
    for row, one in enumerate(rows):
        assert torch.equal(together[row], adjusted(logits[row : row + 1], [one], (EOS,))[0])
        assert torch.equal(together[row], by_the_book(logits[row], one))


def by_the_book(logits: torch.Tensor, one: Sequence) -> torch.Tensor:
    """One token after another, in OpenAI's and CTRL's words."""
    params, found = one.request.sampling, logits.clone()
    for token_id in set(one.tokens):
        value, penalty = found[token_id], params.repetition_penalty
        found[token_id] = value / penalty if value > 0 else value * penalty
    for token_id, count in one.output_counts.items():
        found[token_id] += -params.presence_penalty - params.frequency_penalty * count
    for token_id, bias in params.logit_bias:
        found[token_id] += bias
    if one.num_output < params.min_tokens:
        found[[EOS, *params.stop_token_ids]] = -torch.inf
    return found
