"""Swap under load, in small: adapters come, go and change while requests run (test_swap_gpu.py)."""

from pathlib import Path

import pytest

from tests.inference.driving import make_client, make_engine
from tests.inference.swapping import Swapper, find_probes, running
from tests.tiny import make_adapter

RANKS = (16, 9, 3, 12, 16, 1, 10, 16, 8)


@pytest.fixture(scope="module")
def versions(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("versions")
    return {
        f"v{seed}": make_adapter(folder / f"v{seed}", base, r=rank, seed=seed)
        for seed, rank in enumerate(RANKS)
    }


@pytest.mark.case("C67")
@pytest.mark.parametrize("overlap", [False, True])
def test_every_answer_is_its_solo_answer(
    base: Path, versions: dict[str, Path], overlap: bool
) -> None:
    solo = make_client(base, versions, "", max_loras_per_batch=len(versions), max_num_seqs=1)
    for name, path in versions.items():
        solo.engine.load_adapter(name, str(path))
    probes = find_probes(solo, versions, 5, 8, 1e-3)
    assert {probe.version for probe in probes} == {None, *versions}
    engine = make_engine(
        base,
        overlap=overlap,
        max_loras_per_batch=2,
        max_lora_rank=16,
        max_num_seqs=16,
        # Most are read from their files again.
        host_adapter_bytes=200_000,
        kv_cache_bytes=400 << 10,
    )
    swapper = Swapper(engine, versions, probes, num_names=8)
    with running(engine):
        swapper.run(400, most_open=24)
    engine.check_integrity()
    stats = engine.stats()
    assert stats.num_running == stats.num_waiting == 0 and stats.num_failed == 0
    assert stats.num_adapter_evictions > 5 and stats.num_cached_tokens > 0
    assert swapper.num_loaded > 12 and swapper.num_unloaded > 8 and swapper.max_running > 8
