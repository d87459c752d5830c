"""On CUDA: ten thousand requests while adapters come, go and change; long answers under graphs."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.startup import DTYPES
from tests.inference.driving import make_client, make_engine
from tests.inference.long_answers import PROMPTS, check_by_asking, check_by_logits, long_answers
from tests.inference.swapping import Swapper, find_probes, running
from tests.tiny import make_adapter, make_base

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
# Heads and widths that the Hopper kernels take.
WIDE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "head_dim": 64,
    "max_position_embeddings": 4096,
}
RANKS = (8, 16, 32, 3, 32, 8, 16, 1, 24, 8, 16, 24, 8, 5, 16, 32, 8, 12, 16, 8)
NUM_REQUESTS = 10_000
MOST_OPEN = 96
MOST_ROUNDS = 20
MAX_RANK = 32
# A page of the wide model.
PAGE_ELEMENTS = 65_536
# Of log-probabilities. Logits have a deviation near 5; bf16 is right to about 0.05 of them.
MARGINS = {"float32": 1e-3, "bfloat16": 0.3}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("wide") / "base", **WIDE)


@pytest.fixture(scope="module")
def versions(base: Path) -> dict[str, Path]:
    return {
        f"v{seed}": make_adapter(base.parent / f"v{seed}", base, r=rank, seed=seed)
        for seed, rank in enumerate(RANKS)
    }


@pytest.mark.parametrize("dtype", sorted(MARGINS))
def test_every_answer_is_its_solo_answer(base: Path, versions: dict[str, Path], dtype: str) -> None:
    config: dict[str, Any] = {
        "device": "cuda",
        "dtype": dtype,
        "max_lora_rank": MAX_RANK,
        "max_model_len": 128,
        "kv_cache_bytes": 64 << 20,
    }
    solo = make_client(base, versions, "", max_loras_per_batch=20, max_num_seqs=1, **config)
    for name, path in versions.items():
        solo.engine.load_adapter(name, str(path))
    probes = find_probes(solo, versions, 16, 12, MARGINS[dtype])
    assert {probe.version for probe in probes} == {None, *versions}
    engine = make_engine(
        base,
        # 16 of the 39 pages that the versions have.
        max_loras_per_batch=4,
        max_num_seqs=64,
        # The others are read from their files again.
        host_adapter_bytes=25 * PAGE_ELEMENTS * DTYPES[dtype].itemsize,
        **config,
    )
    swapper = Swapper(engine, versions, probes, num_names=16)
    started = time.monotonic()
    with running(engine):
        swapper.run(NUM_REQUESTS, MOST_OPEN)
        # How many make room for others depends on which requests meet: 19 to 90 in ten runs.
        for _ in range(MOST_ROUNDS):
            if engine.stats().num_adapter_evictions > 40:
                break
            swapper.run(NUM_REQUESTS // 5, MOST_OPEN)
    engine.check_integrity()
    stats = engine.stats()
    print(
        f"{dtype}: at least {NUM_REQUESTS} requests, {stats.num_output_tokens} tokens, "
        f"{len(probes)} solo answers, {swapper.num_loaded} loads, {swapper.num_unloaded} unloads, "
        f"{stats.num_adapter_loads} copies to the device, {stats.num_adapter_evictions} evictions, "
        f"{time.monotonic() - started:.1f} s"
    )
    assert stats.num_running == stats.num_waiting == 0 and stats.num_failed == 0
    assert stats.num_adapter_evictions > 40 and stats.num_cached_tokens > 0
    assert swapper.num_loaded > 250 and swapper.num_unloaded > 250
    assert swapper.max_running > 48


NAMES = [None, "v0", "v1", "v2", "v4", "v0", "v3", None]
NUM_TOKENS = 2000
LONG: dict[str, Any] = {
    "device": "cuda",
    "dtype": "float32",
    "max_lora_rank": MAX_RANK,
    "max_model_len": 2200,
    "kv_cache_bytes": 1 << 30,
}


@pytest.fixture(scope="module")
def answers(base: Path, versions: dict[str, Path]) -> list[list[int]]:
    """Of two thousand tokens, by graphs, eight at once."""
    user = make_client(base, versions, "", max_num_seqs=8, **LONG)
    for name in sorted({name for name in NAMES if name}):
        user.engine.load_adapter(name, str(versions[name]))
    return long_answers(user, NAMES, NUM_TOKENS)


def test_long_answers_are_those_without_graphs(
    base: Path, versions: dict[str, Path], answers: list[list[int]]
) -> None:
    """At every place, by prefills op by op."""
    user = make_client(base, versions, "", max_num_seqs=64, cuda_graphs=False, **LONG)
    for prompt, name, answer in zip(PROMPTS, NAMES, answers, strict=True):
        if name is not None:
            user.engine.load_adapter(name, str(versions[name]))
        check_by_asking(user, prompt, answer, name)


def test_long_answers_are_pefts(
    base: Path, versions: dict[str, Path], answers: list[list[int]]
) -> None:
    pytest.importorskip("peft")
    from tests.inference.oracle import Oracle

    oracle = Oracle(base, {name: versions[name] for name in sorted({n for n in NAMES if n})})
    for prompt, name, answer in zip(PROMPTS, NAMES, answers, strict=True):
        check_by_logits(oracle.logits([*prompt, *answer], name), prompt, answer)
