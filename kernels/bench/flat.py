"""Flatness: one adapter in use, whatever else is resident. A layer's gain over its base matmuls."""

from collections.abc import Iterator
from functools import partial

import torch

from kernels.bench.cases import LAYER, base_weights
from kernels.bench.measure import median_difference
from kernels.bench.timing import Call, graph_us, rounds_us
from kernels.bench.workloads import Pool, make_pool
from kernels.lora import ActivePages, lora_linear

RANK = 16
# Slot in use, ranks of the resident adapters, rank that the page table has room for.
RESIDENTS = {
    "1": (0, [RANK], 64),
    "1000": (617, [RANK] * 1000, 64),
    "1 and one of rank 256": (1, [256, RANK], 256),
}
TOKENS = (1, 64, 256)
# 21 GB of pages for a thousand adapters; the base weights between two uses empty the L2 cache.
NUM_LAYERS = 8
NUM_ROUNDS = 15


def run() -> Iterator[dict[str, object]]:
    """One line a number of tokens and set of residents; ratio: to the gain with one resident."""
    for num_tokens in TOKENS:
        pools = {name: _pool(num_tokens, *resident) for name, resident in RESIDENTS.items()}
        yield from _lines(num_tokens, pools)
        pools.clear()
        torch.cuda.empty_cache()


def _lines(num_tokens: int, pools: dict[str, Pool]) -> Iterator[dict[str, object]]:
    inputs = _inputs(num_tokens)
    works: dict[str, list[Call]] = {
        "base": [partial(torch.mm, x, weight.T) for x, weight in inputs]
    }
    works |= {name: _calls(pool, inputs) for name, pool in pools.items()}
    times = rounds_us(works, NUM_ROUNDS)
    gains = {name: len(LAYER) * median_difference(times[name], times["base"]) for name in pools}
    for name, gain in gains.items():
        yield {
            "op": "lora",
            "table": "flat",
            "dtype": "bfloat16",
            "tokens": num_tokens,
            "adapters": 1,
            "rank": RANK,
            "resident": name,
            "gain_us": round(gain, 2),
            "ratio": round(gain / gains["1"], 3),
            "plan_us": round(_plan_us(pools[name]), 2),
        }


def _pool(num_tokens: int, slot: int, ranks: list[int], max_rank: int) -> Pool:
    return make_pool(
        [*LAYER.values()] * NUM_LAYERS,
        [slot] * num_tokens,
        ranks,
        max_rank=max_rank,
        dtype=torch.bfloat16,
        device="cuda",
    )


def _inputs(num_tokens: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """x [T, H] and the base weight [N, H] of each projection of each layer."""
    found = []
    for layer in range(NUM_LAYERS):
        for group in LAYER.values():
            x = torch.randn(num_tokens, group.hidden, dtype=torch.bfloat16, device="cuda")
            base = base_weights(group)
            found.append((x, base[layer % len(base)]))
    return found


def _calls(pool: Pool, inputs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[Call]:
    batch = ActivePages(pool.weights).bind(pool.batch, {})
    return [
        partial(lora_linear, x, weight, lora, batch)
        for (x, weight), lora in zip(inputs, pool.weights, strict=True)
    ]


def _plan_us(pool: Pool) -> float:
    pages = ActivePages(pool.weights)
    return graph_us(lambda: [pages.bind(pool.batch, {}) for _ in range(8)], 8)
