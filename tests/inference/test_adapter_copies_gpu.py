"""Adapters that come and go on CUDA while steps run: no step reads pages that are being written."""

import itertools
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.adapter import Adapter
from inference.adapter_copies import AdapterCopies, Copied
from inference.host_pages import HostPages
from inference.lora import LoraPool, PackedAdapter
from inference.model_spec import ModelSpec
from tests.inference.driving import PROMPT, Client, greedy, make_client
from tests.tiny import make_adapter, make_base

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
RANKS = {"a": 8, "b": 16, "c": 64, "d": 3, "e": 64, "f": 64}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    """Heads and widths that the Hopper kernels take."""
    folder = tmp_path_factory.mktemp("wide")
    base = make_base(folder / "base", hidden_size=256, intermediate_size=512, head_dim=64)
    return base, {
        name: make_adapter(folder / name, base, r=rank, seed=seed)
        for seed, (name, rank) in enumerate(RANKS.items())
    }


def on_cuda(base: Path, paths: dict[str, Path], names: str, **config: Any) -> Client:
    # In bf16 two tokens are often as likely, and company rounds otherwise.
    values = {"device": "cuda", "max_model_len": 256, "max_num_seqs": 8, "dtype": "float32"}
    return make_client(base, paths, names, **values | config)


def test_a_copy_waits_for_steps_and_no_step_for_it(wide: tuple[Path, dict[str, Path]]) -> None:
    """A reader on the compute stream that was launched first sees the former owner only."""
    spec, device = ModelSpec.load(wide[0]), torch.device("cuda")
    lora = LoraPool(spec, 4, 16, torch.bfloat16, device)
    host = HostPages(8, lora.layout.page_elements, torch.bfloat16, pin_memory=True)
    copies = AdapterCopies(lora)
    scales, groups = (1.0,) * lora.layout.num_columns, frozenset(range(len(lora.layout.groups)))

    def copy(value: float, host_pages: tuple[int, ...], slot: int) -> None:
        spans = host.spans(host_pages)
        for span in spans:
            span.fill_(value)
        adapter = Adapter(f"v{value}", "", 16, 2, 1, slot=slot, pages=(3, 1))
        copies.mark()
        copies.start(adapter, PackedAdapter(adapter.digest, 16, spans, scales, groups))

    copy(1.0, (0, 5), 0)
    while copies.num_under_way:
        copies.finished()
    busy = torch.randn(4096, 4096, device=device)
    for _ in range(40):
        busy = torch.mm(busy, busy).clamp_(-1, 1)
    before = lora.pages[[3, 1]].clone()
    started = time.perf_counter()
    copy(2.0, (2, 3), 1)
    assert time.perf_counter() - started < 0.5
    done: list[Copied] = []
    while copies.num_under_way:
        done += copies.finished()
    assert [one.digest for one in done] == ["v2.0"] and done[0].seconds > 0
    assert bool((before == 1.0).all()) and bool((lora.pages[[3, 1]] == 2.0).all())
    assert lora._page_owner.tolist() == [-1, 1, -1, 1]
    assert lora._page_table[1].tolist() == [3, 1]


@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_solo_answers_while_copies_overlap_steps(
    wide: tuple[Path, dict[str, Path]], tmp_path: Path, cuda_graphs: bool
) -> None:
    """The device has room for 24 pages of 28, the host for one of the largest: all of them move."""
    base, paths = wide
    names = [None, *paths]
    solo = on_cuda(base, paths, "abcdef", max_lora_rank=64, cuda_graphs=cuda_graphs)
    want = {name: solo.ask(PROMPT, greedy(24), name) for name in names}
    user = on_cuda(
        base,
        paths,
        "abcdef",
        max_lora_rank=64,
        max_loras_per_batch=2,
        host_adapter_bytes=1,
        adapter_cache_dir=str(tmp_path / "compiled"),
        cuda_graphs=cuda_graphs,
    )
    chance = random.Random(1)
    asked = {}
    for _ in range(12):
        for name in chance.sample(names, len(names)) * 2:
            asked[user.submit(PROMPT, greedy(24), name)] = name
            user.step(chance.randrange(3))
        user.drain(100_000)
    wrong = [one for one, name in asked.items() if user.tokens(one) != want[name]]
    assert not wrong, f"{len(wrong)} of {len(asked)} answers are not their solo answers"
    stats = user.engine.stats()
    assert stats.adapter_evictions["device", "room"] > 4
    assert stats.adapter_load_times["host", "device"][0] > 8
    assert stats.adapter_load_times["compiled", "host"][0] > 0
    assert len({tuple(tokens) for tokens in want.values()}) == len(names)


def test_the_loop_serves_while_others_load_and_unload(
    wide: tuple[Path, dict[str, Path]], tmp_path: Path
) -> None:
    """In the loop's thread, with loads and unloads by another one."""
    base, paths = wide
    solo = on_cuda(base, paths, "abf", max_lora_rank=64)
    want = {name: solo.ask(PROMPT, greedy(40), name) for name in (None, "a", "b", "f")}
    folder = str(tmp_path / "compiled")
    user = on_cuda(
        base,
        paths,
        "abf",
        max_lora_rank=64,
        max_loras_per_batch=2,
        host_adapter_bytes=8 << 20,
        adapter_cache_dir=folder,
    )
    engine, is_over = user.engine, threading.Event()

    def come_and_go() -> None:
        for number in itertools.count():
            if is_over.is_set():
                return
            name = "cde"[number % 3]
            engine.load_adapter(name, str(paths[name]))
            user.submit(PROMPT[:5], greedy(2), name)
            engine.unload_adapter(name)
            # As many as the device can take in.
            time.sleep(0.005)

    loop = threading.Thread(target=engine.run)
    visitor = threading.Thread(target=come_and_go)
    loop.start()
    visitor.start()
    asked = {}
    chance = random.Random(2)
    for _ in range(60):
        name = chance.choice(list(want))
        asked[user.submit(PROMPT, greedy(40), name)] = name
        time.sleep(0.01)
    deadline = time.monotonic() + 120
    while not all(user.terminal(one) for one in asked) and time.monotonic() < deadline:
        time.sleep(0.01)
    is_over.set()
    visitor.join()
    while engine.state().num_waiting or engine.state().num_running:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    engine.check_integrity()
    engine.stop()
    loop.join()
    assert all(user.tokens(one) == want[name] for one, name in asked.items())
    assert engine.stats().num_failed == 0
