"""One forward for many adapters, ranks and none: every row equals PEFT's answer for it alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from inference.request import SamplingParams, Token
from tests.inference.driving import Client, greedy, make_engine
from tests.inference.oracle import Oracle
from tests.inference.test_models import LLAMA3
from tests.tiny import ATTENTION, make_adapter, make_base

# Each alpha is such that a wrong scale, rank or rsLoRA rule moves the logits beyond rounding.
ADAPTERS: dict[str, dict[str, Any]] = {
    "r4": {"r": 4, "targets": ("q_proj", "v_proj")},
    "r8": {"r": 8, "alpha": 12.5},
    "r16": {"r": 16, "targets": (*ATTENTION, "down_proj")},
    "r64": {"r": 64},
    "rslora": {"r": 64, "alpha": 16, "use_rslora": True},
    "odd": {"r": 5, "alpha": 7, "targets": ("gate_proj", "up_proj")},
    "patterns": {
        "r": 16,
        "alpha": 32,
        "rank_pattern": {"layers.1.self_attn.q_proj": 3, "down_proj": 24, "proj": 2},
        "alpha_pattern": {r".*\.0\.mlp\.up_proj": 5, "k_proj": 64},
    },
    "layer": {"r": 8, "layers": (1,)},
}
ROWS = [None, *ADAPTERS, "r8"]


def prompt(row: int) -> list[int]:
    return [(row * 37 + 11 * i * i) % 256 for i in range(5 + 9 * row)]


ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 2": ("llama", {"num_key_value_heads": 4}),
    "llama 3": ("llama", {"rope_theta": 500_000.0}),
    "llama 3.1": ("llama", {"rope_theta": 500_000.0, "rope_scaling": LLAMA3}),
    "smollm2": ("llama", {"tie_word_embeddings": True, "rope_theta": 100_000.0}),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen3": ("qwen3", {}),
    "qwen3, tied": ("qwen3", {"tie_word_embeddings": True}),
}
TOLERANCE = 1e-3


class World:
    def __init__(self, folder: Path, architecture: str, **config: Any) -> None:
        self.base = make_base(folder / "base", architecture, **config)
        self.paths = {
            name: make_adapter(folder / name, self.base, seed=seed, **options)
            for seed, (name, options) in enumerate(ADAPTERS.items(), 1)
        }
        oracle = Oracle(self.base, self.paths)
        self.expected = [oracle.greedy(prompt(i), 16, name) for i, name in enumerate(ROWS)]
        self.logprobs = [
            torch.log_softmax(oracle.logits(prompt(i), name)[-1], -1) for i, name in enumerate(ROWS)
        ]

    def client(self, **config: Any) -> Client:
        client = Client(make_engine(self.base, max_loras_per_batch=len(ADAPTERS), **config))
        for name, path in self.paths.items():
            client.engine.load_adapter(name, str(path))
        return client


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"), request.param)


FORWARD = list(range(len(ROWS)))
ORDERS = (FORWARD, FORWARD[::-1], FORWARD[1::2] + FORWARD[::2])


def test_adapters_change_the_output(world: World) -> None:
    """The probes are strong enough that 'silently the base' could not pass below."""
    check_probes(world)


def check_probes(world: World) -> None:
    oracle = Oracle(world.base)
    for row, (name, found) in enumerate(zip(ROWS, world.logprobs, strict=True)):
        alone = torch.log_softmax(oracle.logits(prompt(row))[-1], -1)
        assert (name is None) is bool((found - alone).abs().max() < 10 * TOLERANCE), name


@pytest.mark.parametrize(("architecture", "config"), ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_every_architecture_in_one_batch_equals_peft_one_by_one(
    architecture: str, config: dict[str, Any], tmp_path: Path
) -> None:
    world = World(tmp_path, architecture, **config)
    check_probes(world)
    client = world.client(max_batch_tokens=100)
    ids = [client.submit(prompt(row), greedy(), name) for row, name in enumerate(ROWS)]
    client.drain()
    assert [client.tokens(i) for i in ids] == world.expected
    check_logprobs(world)


@pytest.mark.case("C01")
@pytest.mark.case("C03")
@pytest.mark.case("C04")
@pytest.mark.case("C16")
@pytest.mark.case("C39")
@pytest.mark.case("C70")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("max_batch_tokens", [512, 40])
def test_mixed_batch_equals_one_by_one(
    world: World, order: list[int], max_batch_tokens: int
) -> None:
    client = world.client(max_batch_tokens=max_batch_tokens)
    ids = {row: client.submit(prompt(row), greedy(), ROWS[row]) for row in order}
    client.drain()
    for row in order:
        assert client.tokens(ids[row]) == world.expected[row], ROWS[row]


def test_logprobs_equal_peft(world: World) -> None:
    check_logprobs(world)


def check_logprobs(world: World) -> None:
    client = world.client()
    params = SamplingParams(1, temperature=0.0, ignore_eos=True, num_logprobs=256)
    ids = [client.submit(prompt(row), params, name) for row, name in enumerate(ROWS)]
    client.drain()
    for request_id, expected in zip(ids, world.logprobs, strict=True):
        event = client.events[request_id][0]
        assert isinstance(event, Token) and event.logprobs is not None
        found = torch.full_like(expected, torch.nan)
        for token_id, logprob in event.logprobs.top:
            found[token_id] = logprob
        kept = ~torch.isnan(found)
        assert kept.sum() == 256
        torch.testing.assert_close(found[kept], expected[kept], atol=TOLERANCE, rtol=0)


def test_joining_and_leaving_rows_do_not_disturb_the_others(world: World) -> None:
    """Requests enter a running batch one by one, mixing their prefills with the others' decodes."""
    client = world.client(max_batch_tokens=48)
    ids = []
    for row, name in enumerate(ROWS):
        ids.append(client.submit(prompt(row), greedy(), name))
        client.step(2)
    client.drain()
    assert [client.tokens(i) for i in ids] == world.expected


def test_preempted_requests_give_the_same_tokens(world: World) -> None:
    """KV memory for a few of the sequences: some are pushed out and computed again."""
    block_bytes = 2 * 2 * 16 * 2 * 16 * 4
    found = []
    for config in ({}, {"kv_cache_bytes": 14 * block_bytes, "max_model_len": 160}):
        client = world.client(**config)
        ids = [client.submit(prompt(row), greedy(60), name) for row, name in enumerate(ROWS)]
        client.drain()
        found.append([client.tokens(i) for i in ids])
    assert client.engine.stats().num_preemptions > 0
    assert found[0] == found[1]


@pytest.mark.case("C71")
def test_more_adapters_than_fit(world: World) -> None:
    """Two at a time on two slots' pages: swapped in and out under load, no answer changes."""
    small = Client(make_engine(world.base, max_loras_per_batch=2, max_num_seqs=4))
    for name, path in world.paths.items():
        small.engine.load_adapter(name, str(path))
    rows = list(range(len(ROWS))) * 3
    ids = [(row, small.submit(prompt(row), greedy(), ROWS[row])) for row in rows]
    small.drain()
    assert small.engine.stats().num_adapter_evictions > 0
    for row, request_id in ids:
        assert small.tokens(request_id) == world.expected[row], ROWS[row]
