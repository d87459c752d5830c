"""The engine on CUDA, decodes captured and LoRA folded, against the CPU's answers."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.inference.driving import PROMPT, Client, greedy, make_client
from tests.inference.test_decode_graphs import NAMES, PROMPTS, answers
from tests.inference.test_prompt_scores import scores, submit_all, values
from tests.tiny import make_adapter, make_base

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MAX_TOKENS = [30, 4, 19, 40, 1, 25]


def on_cuda(base: Path, paths: dict[str, Path], names: str = "abc", **config: Any) -> Client:
    values = {"device": "cuda", "max_model_len": 256, "max_num_seqs": 8} | config
    return make_client(base, paths, names, **values)


@pytest.mark.parametrize(
    ("config", "step_paths"),
    [
        ({}, {"graph", "prompt graph"}),
        ({"cuda_graphs": False}, {"prefill", "no graphs"}),
        ({"prompt_graphs": False}, {"graph", "prefill"}),
    ],
    ids=["graphs", "no graphs", "graphs of decodes alone"],
)
def test_the_cpus_tokens_in_fp32(
    base: Path, paths: dict[str, Path], config: dict[str, bool], step_paths: set[str]
) -> None:
    want = answers(make_client(base, paths, "abc"), MAX_TOKENS)
    user = on_cuda(base, paths, dtype="float32", **config)
    assert answers(user, MAX_TOKENS) == want
    assert set(user.engine.stats().steps_by_path) == step_paths


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    """Heads and widths that the Hopper kernels take."""
    folder = tmp_path_factory.mktemp("wide")
    shape = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    base = make_base(folder / "base", **shape)
    ranks = {"a": 8, "b": 64, "c": 64, "d": 3, "e": 64}
    return base, {
        name: make_adapter(folder / name, base, r=rank, seed=seed)
        for seed, (name, rank) in enumerate(ranks.items())
    }


@pytest.mark.parametrize("prompt_graphs", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_alone_or_together_in_half_precision(
    wide: tuple[Path, dict[str, Path]], dtype: str, prompt_graphs: bool
) -> None:
    base, paths = wide
    alone = on_cuda(base, paths, dtype=dtype, prompt_graphs=prompt_graphs)
    want = [
        alone.ask(prompt, greedy(number), name)
        for prompt, number, name in zip(PROMPTS, MAX_TOKENS, NAMES, strict=True)
    ]
    user = on_cuda(base, paths, dtype=dtype, prompt_graphs=prompt_graphs)
    assert answers(user, MAX_TOKENS) == want
    assert len({tuple(tokens[:4]) for tokens in want}) > 3


def test_adapters_that_come_and_go_under_load(wide: tuple[Path, dict[str, Path]]) -> None:
    """16 of the 26 pages that are in demand: each answer is its solo answer."""
    base, paths = wide
    names = [None, *paths]
    config = {"max_lora_rank": 64, "dtype": "float32"}
    solo = on_cuda(base, paths, "abcde", **config)
    want = {name: solo.ask(PROMPT, greedy(24), name) for name in names}
    user = on_cuda(base, paths, "abcde", max_loras_per_batch=1, **config)
    rng = random.Random(1)
    asked = {}
    for _ in range(12):
        for name in rng.sample(names, len(names)) * 2:
            asked[user.submit(PROMPT, greedy(24), name)] = name
            user.step(rng.randrange(3))
        user.drain()
    assert all(user.tokens(request_id) == want[name] for request_id, name in asked.items())
    assert user.engine.stats().num_adapter_evictions > 10
    assert len({tuple(tokens) for tokens in want.values()}) == len(names)


def test_nothing_is_compiled_after_the_start(wide: tuple[Path, dict[str, Path]]) -> None:
    """A kernel takes seconds to compile, in which all streams would stand still."""
    from triton import knobs

    base, paths = wide
    user = on_cuda(base, paths, "abcde", max_lora_rank=64, dtype="bfloat16", max_batch_tokens=600)
    compiled: list[str] = []
    with knobs.runtime.scope():
        knobs.runtime.jit_post_compile_hook = lambda **call: compiled.append(call["repr"])
        chance = random.Random(2)
        for _ in range(40):
            prompt = [chance.randrange(256) for _ in range(chance.randrange(1, 200))]
            params = greedy(chance.randrange(1, 40), num_logprobs=chance.choice([None, 2]))
            user.submit(prompt, params, chance.choice([None, *paths]))
            user.step(chance.randrange(6))
        user.drain()
    assert not compiled
    assert user.engine.stats().steps_by_path["graph"] > 50


@pytest.mark.parametrize("prompt_graphs", [False, True])
def test_scores_of_prompts_are_the_cpus(
    base: Path, paths: dict[str, Path], prompt_graphs: bool
) -> None:
    """Beside decodes, whose tokens stay what they are alone."""
    found = []
    for user in (
        make_client(base, paths),
        on_cuda(base, paths, "ab", dtype="float32", prompt_graphs=prompt_graphs),
    ):
        other = user.submit(PROMPT[:9], greedy(12), "b")
        user.step(2)
        ids = submit_all(user)
        user.drain()
        found.append(([values(scores(user, each)) for each in ids], user.tokens(other)))
    (want, tokens), (got, tokens_got) = found
    assert tokens_got == tokens
    for one, other_one in zip(got, want, strict=True):
        torch.testing.assert_close(one, other_one, atol=1e-3, rtol=1e-3)
