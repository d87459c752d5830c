"""What batched LoRA adds to a layer of Llama-3.1-8B's shape: table A, on CUDA in bf16.

A layer is its four projection groups in order: its base matmuls alone, then with the adapters
applied after each. A replay walks several layers' weights, so that none is found in the L2 cache.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from kernels.bench.timing import graph_us, read_bytes_per_us
from kernels.bench.workloads import Group, Pool, make_pool
from kernels.lora import ActivePages, LoraBatch, LoraWeights, add_lora

LAYER = (
    Group(4096, (4096, 1024, 1024)),
    Group(4096, (4096,)),
    Group(4096, (14336, 14336)),
    Group(14336, (4096,)),
)
NUM_LAYERS = 4
RANK = 16
POINTS = ((1, 1), (64, 1), (64, 16), (64, 64), (256, 16), (256, 64), (256, 256), (2048, 4))


@dataclass(frozen=True)
class Projection:
    """One group's base weight and tensors, with its adapters."""

    base: torch.Tensor  # [N, H]
    x: torch.Tensor  # [T, H]
    y: torch.Tensor  # [T, N]
    lora: LoraWeights


def run(points: tuple[tuple[int, int], ...] = POINTS) -> Iterator[dict[str, object]]:
    """One result a (tokens, distinct adapters) point."""
    bandwidth = read_bytes_per_us()
    for num_tokens, num_adapters in points:
        yield measure(num_tokens, num_adapters, bandwidth)
        torch.cuda.empty_cache()


def measure(num_tokens: int, num_adapters: int, bandwidth: float) -> dict[str, object]:
    pool = _pool(num_tokens, num_adapters)
    layers = [_projection(weights, num_tokens) for weights in pool.weights]
    pages = ActivePages(pool.weights)
    batch = pages.bind(pool.batch, {})
    base_us = graph_us(lambda: _walk(layers, _base), NUM_LAYERS)
    both_us = graph_us(lambda: _walk(layers, lambda p: _base_and_lora(p, batch)), NUM_LAYERS)
    plan_us = graph_us(lambda: [pages.bind(pool.batch, {}) for _ in range(4)], 4)
    element = pool.pages.element_size()
    adapter_bytes = sum(RANK * _elements_per_row(group) * element for group in LAYER)
    return {
        "op": "lora",
        "table": "A",
        "dtype": "bfloat16",
        "tokens": num_tokens,
        "adapters": num_adapters,
        "rank": RANK,
        "gain_us": round(both_us - base_us, 2),
        "base_us": round(base_us, 2),
        "floor_us": round(num_adapters * adapter_bytes / bandwidth, 2),
        # Once a step, not a layer: not in gain_us.
        "plan_us": round(plan_us, 2),
        "read_tb_s": round(bandwidth / 1e6, 3),
    }


def _pool(num_tokens: int, num_adapters: int) -> Pool:
    slots = [token * num_adapters // num_tokens for token in range(num_tokens)]
    # Shuffled: a batch does not arrive sorted by adapter.
    order = torch.randperm(num_tokens, generator=torch.Generator().manual_seed(1)).tolist()
    return make_pool(
        LAYER * NUM_LAYERS,
        [slots[token] for token in order],
        [RANK] * num_adapters,
        dtype=torch.bfloat16,
        device="cuda",
    )


def _projection(lora: LoraWeights, num_tokens: int) -> Projection:
    hidden, width = lora.a.shape[3], lora.b.shape[2]
    base, x, y = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        for shape in ((width, hidden), (num_tokens, hidden), (num_tokens, width))
    )
    return Projection(base * 0.02, x, y, lora)


def _walk(layers: list[Projection], work: Callable[[Projection], None]) -> None:
    for projection in layers:
        work(projection)


def _base(p: Projection) -> None:
    torch.mm(p.x, p.base.T, out=p.y)


def _base_and_lora(p: Projection, batch: LoraBatch) -> None:
    _base(p)
    add_lora(p.y, p.x, p.lora, batch)


def _elements_per_row(group: Group) -> int:
    return len(group.slice_sizes) * group.hidden + sum(group.slice_sizes)
