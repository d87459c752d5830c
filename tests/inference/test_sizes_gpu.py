"""Every prompt length with every rank, 1, 3 and 64 at once, on CUDA, by all paths of a step."""

from typing import Any

import pytest
import torch

from tests.inference.sizes import LENGTHS, RANKS, Row, Sizes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROWS: list[Row] = [(length, rank) for rank in (*RANKS, None) for length in LENGTHS]
# Of a logprob, where an adapter moves some by 15 to 30. The CPU's worst are 0.0001, 0.13 and 0.85.
TOLERANCES = {"float32": 0.05, "float16": 0.5, "bfloat16": 2.5}
NO_GRAPHS = {"cuda_graphs": False, "prompt_graphs": False}
ENGINES: dict[str, dict[str, Any]] = {
    "float32": {},
    "float16": {},
    "bfloat16": {},
    "bfloat16, no graphs": NO_GRAPHS,
}


@pytest.fixture(scope="module", params=[64, 128], ids="heads of {}".format)
def sizes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sizes:
    """Widths that the Hopper kernels take."""
    shape = {"hidden_size": 4 * request.param, "head_dim": request.param, "intermediate_size": 512}
    return Sizes(tmp_path_factory.mktemp("sizes"), RANKS, "cuda", **shape)


def test_the_probes_are_strong(sizes: Sizes) -> None:
    assert min(sizes.effect((16, rank)) for rank in RANKS) > 5 * max(TOLERANCES.values())


@pytest.mark.case("C74")
@pytest.mark.parametrize("engine", ENGINES)
def test_every_length_and_rank(sizes: Sizes, engine: str) -> None:
    """A peer's kernel gave NaN from a token position on, behind one tile: short probes passed."""
    dtype = engine.split(",")[0]
    config = {"dtype": dtype, "device": "cuda", "kv_cache_bytes": 1 << 30} | ENGINES[engine]
    client = sizes.client(max_num_seqs=64, **config)
    errors = {size: sizes.sweep(client, ROWS, size) for size in (1, 3, 64)}
    print(f"{engine}: {errors}")
    assert max(errors.values()) < TOLERANCES[dtype], errors
