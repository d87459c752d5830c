"""Activated LoRA: base up to the last invocation, adapter from it on; PEFT says what is right.

What is before the invocation is the base's, keys and values too: shared with base requests, both
ways.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from inference.errors import EngineError, ErrorCode
from inference.request import GenerateRequest, SamplingParams, Token
from tests.inference.driving import Client, greedy, make_engine, wait_until_compiled
from tests.inference.oracle import Oracle
from tests.inference.test_decode_graphs import use_graph_inputs
from tests.tiny import make_adapter, make_base

LONG, SHORT = [7, 8, 9], [250]
ADAPTERS: dict[str, dict[str, Any]] = {
    "long": {"r": 16, "alora_invocation_tokens": LONG},
    "short": {"r": 8, "alora_invocation_tokens": SHORT, "targets": ("q_proj", "k_proj", "v_proj")},
    "rslora": {"r": 4, "alpha": 6, "use_rslora": True, "alora_invocation_tokens": LONG},
    "plain": {"r": 8},
}
TEXT = [(5 * i * i + i) % 249 for i in range(60)]
# (adapter, prompt): blocks are of 16 tokens.
ROWS: list[tuple[str | None, list[int]]] = [
    ("long", [*TEXT[:40], *LONG, *TEXT[40:]]),
    (None, TEXT),
    ("long", [*LONG, *TEXT[:30]]),
    ("short", [*TEXT[:32], *SHORT, 3, 4]),
    ("plain", [*TEXT[:40], *LONG, *TEXT[40:]]),
    # The last of several counts, also where they overlap.
    ("long", [*TEXT[:18], *LONG, 1, *LONG, *TEXT[20:24]]),
    ("short", [*TEXT[:15], *SHORT * 3]),
    # Over the border of two blocks; at the very end; half of one behind it.
    ("long", [*TEXT[:14], *LONG, *TEXT[:5]]),
    ("rslora", [*TEXT[:48], *LONG]),
    ("rslora", [*TEXT[:20], *LONG, 5, *LONG[:2]]),
]


class World:
    def __init__(self, folder: Path, architecture: str) -> None:
        self.base = make_base(folder / "base", architecture)
        self.paths = {
            name: make_adapter(folder / name, self.base, seed=seed, **options)
            for seed, (name, options) in enumerate(ADAPTERS.items(), 1)
        }
        oracle = Oracle(self.base, self.paths)
        self.oracle = oracle
        self.expected = [oracle.greedy(prompt, 20, name) for name, prompt in ROWS]
        self.logprobs = [
            torch.log_softmax(oracle.logits(prompt, name)[-1], -1) for name, prompt in ROWS
        ]

    def client(self, **config: Any) -> Client:
        client = Client(make_engine(self.base, **config))
        for name, path in self.paths.items():
            client.engine.load_adapter(name, str(path))
        return client


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("alora"), request.param)


def test_the_probes_tell_where_an_adapter_begins(world: World, tmp_path: Path) -> None:
    """Logits of the base, and of the same weights applied from the first token on, are far off."""
    everywhere = {
        name: make_adapter(
            tmp_path / name,
            world.base,
            seed=seed,
            **{k: v for k, v in options.items() if k != "alora_invocation_tokens"},
        )
        for seed, (name, options) in enumerate(ADAPTERS.items(), 1)
    }
    oracle = Oracle(world.base, everywhere)
    for (name, prompt), right in zip(ROWS, world.logprobs, strict=True):
        if name in (None, "plain"):
            continue
        for wrong in (oracle.logits(prompt)[-1], oracle.logits(prompt, name)[-1]):
            from_start = prompt[:3] == LONG and wrong is not None
            distance = (torch.log_softmax(wrong, -1) - right).abs().max()
            assert distance > 0.05 or from_start, name


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"max_batch_tokens": 7},
        {"kv_block_size": 4, "max_loras_per_batch": 1, "max_lora_rank": 16},
    ],
    ids=["together", "chunks", "one adapter at a time"],
)
def test_mixed_batch_equals_peft_one_by_one(
    world: World, config: dict[str, int], graphs: bool
) -> None:
    """Twice: the second time out of the prefix cache."""
    client = world.client(overlap=graphs, **config)
    if graphs:
        use_graph_inputs(client.engine)
    for _ in range(2):
        ids = [client.submit(prompt, greedy(20), name) for name, prompt in ROWS]
        client.drain()
        assert [client.tokens(i) for i in ids] == world.expected
    assert client.num_cached(ids[0]) >= 48


@pytest.mark.parametrize("graphs", [False, True])
def test_prompts_token_by_token(world: World, graphs: bool) -> None:
    """A chunk of one token looks like a decode, and may come before the invocation."""
    client = world.client(max_batch_tokens=1, overlap=graphs)
    if graphs:
        use_graph_inputs(client.engine)
    for row in (3, 7):
        name, prompt = ROWS[row]
        assert client.ask(prompt, greedy(4), name) == world.expected[row][:4]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("config", [{}, {"cuda_graphs": False}, {"max_batch_tokens": 7}], ids=str)
def test_a_gpu_equals_peft_one_by_one(world: World, config: dict[str, Any]) -> None:
    """Chunks with and without the adapter in one sequence; decodes as graphs."""
    shape = {"device": "cuda", "dtype": "float32", "max_model_len": 256, "max_num_seqs": 8}
    client = world.client(**shape, **config)
    for _ in range(2):
        ids = [client.submit(prompt, greedy(20), name) for name, prompt in ROWS]
        client.drain()
        assert [client.tokens(i) for i in ids] == world.expected


def test_preempted_requests_give_the_same_tokens(world: World) -> None:
    """Computed again: prompt and output so far in chunks, the adapter from the same place on."""
    block_bytes = 2 * 2 * 16 * 2 * 16 * 4
    client = world.client(kv_cache_bytes=12 * block_bytes, max_model_len=96, max_batch_tokens=30)
    ids = [client.submit(prompt, greedy(20), name) for name, prompt in ROWS * 2]
    client.drain()
    assert client.engine.stats().num_preemptions > 0
    assert [client.tokens(i) for i in ids] == world.expected * 2


def test_compiled_adapters_begin_where_they_did(world: World, tmp_path: Path) -> None:
    """The second engine reads pages that the first one wrote, and no config of PEFT's."""
    config = {"adapter_cache_dir": str(tmp_path / "pages")}
    first = world.client(**config)
    # What is not written when the engine ends is packed again another time.
    wait_until_compiled(first.engine)
    first.engine.stop()
    first.engine.run()
    second = world.client(**config)
    times = second.engine.stats().adapter_load_times
    assert times["compiled", "host"][0] == len(ADAPTERS) and ("disk", "host") not in times
    ids = [second.submit(prompt, greedy(20), name) for name, prompt in ROWS]
    second.drain()
    assert [second.tokens(i) for i in ids] == world.expected


def test_logprobs_equal_peft(world: World) -> None:
    client = world.client()
    params = SamplingParams(1, temperature=0.0, ignore_eos=True, num_logprobs=256)
    ids = [client.submit(prompt, params, name) for name, prompt in ROWS]
    client.drain()
    for request_id, expected in zip(ids, world.logprobs, strict=True):
        event = client.events[request_id][0]
        assert isinstance(event, Token) and event.logprobs is not None
        places, found = zip(*event.logprobs.top, strict=True)
        wanted = expected[list(places)]
        torch.testing.assert_close(torch.tensor(found), wanted, atol=1e-3, rtol=0)


def test_blocks_before_the_invocation_are_shared_with_the_base_both_ways(world: World) -> None:
    """Per tenant: 40 tokens before it, so two blocks of 16 are the base's."""
    client = world.client()
    activated, plain = [*TEXT[:40], *LONG, *TEXT[40:]], [*TEXT[:40], *LONG, *TEXT[40:], 1]
    for adapter, prompt, salt, num_cached in [
        (None, plain, "one", 0),
        ("long", activated, "one", 32),
        ("rslora", activated, "one", 32),
        # All of it but the last token's block: its own, behind the base's.
        ("long", activated, "one", 48),
        ("plain", activated, "one", 0),
        ("long", activated, "two", 0),
        (None, plain, "two", 32),
        ("rslora", activated, "", 0),
        # It begins later: base further on.
        ("long", [*activated[:60], *LONG], "one", 48),
        (None, plain, "one", 48),
    ]:
        request_id = client.submit(prompt, greedy(6), adapter, salt)
        client.drain()
        assert client.num_cached(request_id) == num_cached, (adapter, salt)
        assert client.tokens(request_id) == world.oracle.greedy(prompt, 6, adapter)
    stats = client.engine.stats()
    assert stats.num_cached_tokens == 32 * 3 + 48 * 3


def test_equal_blocks_with_another_begin_are_not_shared(world: World) -> None:
    """The second prompt is the first with its answer, which happens to hold the invocation: the
    same tokens, the same adapter, yet other keys and values from the first invocation on.
    """
    client = world.client()
    first = [*TEXT[:17], *LONG, *TEXT[:4]]
    forced = tuple((token, 1000.0) for token in LONG[:1])
    client.ask(first, greedy(20, logit_bias=forced), "long")
    prompt = [*first, *LONG[:1] * 6]
    assert client.ask(prompt, greedy(8), "long") == world.oracle.greedy(prompt, 8, "long")
    invoked = [*TEXT[:17], *SHORT, *TEXT[:4]]
    client.ask(invoked, greedy(20, logit_bias=((SHORT[0], 1000.0),)), "short")
    again = [*invoked, *SHORT * 12]
    request_id = client.submit(again, greedy(8), "short")
    client.drain()
    assert client.num_cached(request_id) == 16
    assert client.tokens(request_id) == world.oracle.greedy(again, 8, "short")


@pytest.mark.parametrize("prompt", [TEXT, LONG[:2], [*LONG[:2], 1, LONG[2]], LONG[::-1]])
def test_a_prompt_without_the_invocation_is_refused(world: World, prompt: list[int]) -> None:
    """PEFT answers with the base and says nothing: nobody who named an adapter wants that."""
    client = world.client()
    digest = client.engine.resolve_adapter("long")
    with pytest.raises(EngineError, match=r"invocation tokens \[7, 8, 9\]") as refused:
        client.engine.submit(GenerateRequest("r", tuple(prompt), greedy(3), digest), pytest.fail)
    assert (refused.value.code, refused.value.param) == (ErrorCode.INVALID_REQUEST, "prompt")
    assert client.engine.step() is False
