"""Side stream, folded expand and own matmul, alone and together.

A layer of Llama-3.1-8B's shape, on CUDA in bf16. What is timed begins with the base matmul, whose
weights push the adapters' out of the L2 cache, and ends with the consumer's output. A gain is what
a form takes beyond cuBLAS and plain consumer, within one round.
"""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from kernels.activation import silu_mul
from kernels.bench.cases import LAYER
from kernels.bench.timing import Call, rounds_us, spread
from kernels.bench.workloads import Group, make_pool
from kernels.folded import (
    expand_add_rms_norm,
    expand_rope_kv_write,
    expand_silu_mul,
    linear_shrink,
)
from kernels.linear import linear_shares
from kernels.lora import (
    ActivePages,
    LoraBatch,
    LoraWeights,
    Shrunk,
    add_lora,
    lora_linear,
    shrink,
    shrink_beside,
)
from kernels.norm import add_rms_norm
from kernels.rope import rope_kv_write

# By what reads the projection next.
GROUPS = {
    "rope": LAYER["qkv"],
    "silu": LAYER["gate_up"],
    "norm_o": LAYER["o"],
    "norm_down": LAYER["down"],
}
HIDDEN, NUM_KV_HEADS, HEAD_DIM = 4096, 8, 128
# tokens, distinct adapters
POINTS = (
    *((1, 1), (16, 1), (16, 16), (64, 1), (64, 16), (64, 64), (128, 1), (128, 16), (128, 64)),
    *((256, 1), (256, 16), (256, 64), (2048, 1), (2048, 16), (2048, 64)),
)
RANKS = (16, 64)
NUM_ROUNDS = 9
EPS = 1e-5
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Consumer:
    """plain(y) reads the projection's output; folded(y, h, weights, batch) adds the expand."""

    plain: Callable[[torch.Tensor], object]
    folded: Callable[[torch.Tensor, Shrunk, LoraWeights, LoraBatch], object]


@dataclass(frozen=True)
class Layer:
    base: torch.Tensor  # [N, H]
    x: torch.Tensor  # [T, H]
    y: torch.Tensor  # [T, N]
    lora: LoraWeights
    batch: LoraBatch
    consumer: Consumer

    def matmul(self) -> torch.Tensor:
        return torch.mm(self.x, self.base.T, out=self.y)

    def plain(self) -> object:
        self.matmul()
        return self.consumer.plain(self.y)

    def sequence(self) -> object:
        """Shrink, expand and consumer after the matmul."""
        self.matmul()
        add_lora(self.y, self.x, self.lora, self.batch)
        return self.consumer.plain(self.y)

    def beside(self) -> object:
        """The side stream alone: the shrink beside the matmul; expand, then consumer."""
        return self.consumer.plain(lora_linear(self.x, self.base, self.lora, self.batch))

    def folded_in_turn(self) -> object:
        """Folding alone: the shrink after the matmul, the expand with the consumer."""
        y, h = self.matmul(), shrink(self.x, self.lora, self.batch)
        return self.consumer.folded(y, h, self.lora, self.batch)

    def folded_cublas(self) -> object:
        """Side stream and folding."""
        y, h = shrink_beside(self.matmul, self.x, self.lora, self.batch)
        return self.consumer.folded(y, h, self.lora, self.batch)

    def own(self) -> object:
        """No LoRA; where kernels.linear has its own matmul, its shares added by the consumer."""
        return self.consumer.plain(linear_shares(self.x, self.base))

    def folded(self) -> object:
        """All three: what kernels.folded gives."""
        y, h = linear_shrink(self.x, self.base, self.lora, self.batch)
        return self.consumer.folded(y, h, self.lora, self.batch)


FORMS = ("plain", "own", "sequence", "beside", "folded_in_turn", "folded_cublas", "folded")


def run(
    points: tuple[tuple[int, int], ...] = POINTS, ranks: tuple[int, ...] = RANKS
) -> Iterator[dict[str, object]]:
    """One result a projection group, rank and (tokens, distinct adapters)."""
    for name in GROUPS:
        for rank in ranks:
            for num_tokens, num_adapters in points:
                yield measure(name, rank, num_tokens, num_adapters)
                torch.cuda.empty_cache()


def measure(name: str, rank: int, num_tokens: int, num_adapters: int) -> dict[str, object]:
    layers = make_layers(name, rank, num_tokens, num_adapters)
    works: dict[str, list[Call]] = {
        form: [getattr(layer, form) for layer in layers] for form in FORMS
    }
    times = rounds_us(works, NUM_ROUNDS)
    return {
        "op": "folded",
        "consumer": name,
        "dtype": "bfloat16",
        "tokens": num_tokens,
        "adapters": num_adapters,
        "rank": rank,
        "plain_us": round(statistics.median(times["plain"]), 2),
        "gains": {f"{form}_us": _gain_us(times, form) for form in FORMS[1:]},
        "spread": {form: round(spread(each), 4) for form, each in times.items()},
    }


def _gain_us(times: dict[str, list[float]], form: str) -> float:
    """Beyond plain, round by round, in the median."""
    pairs = zip(times[form], times["plain"], strict=True)
    return round(statistics.median(one - plain for one, plain in pairs), 2)


def make_layers(name: str, rank: int, num_tokens: int, num_adapters: int) -> list[Layer]:
    group = GROUPS[name]
    groups, ranks = [group] * (2 if name == "silu" else 4), [rank] * num_adapters
    slots = _shuffled_slots(num_tokens, num_adapters)
    pool = make_pool(groups, slots, ranks, dtype=torch.bfloat16, device="cuda")
    batch = ActivePages(pool.weights).bind(pool.batch, {})
    width = sum(group.slice_sizes)
    return [
        Layer(
            _random(width, group.hidden) * group.hidden**-0.5,
            _random(num_tokens, group.hidden),
            _random(num_tokens, width),
            weights,
            batch,
            consumer_of(group, num_tokens),
        )
        for weights in pool.weights
    ]


def _shuffled_slots(num_tokens: int, num_adapters: int) -> list[int]:
    """Evenly many tokens each; a batch does not arrive sorted by adapter."""
    order = torch.randperm(num_tokens, generator=torch.Generator().manual_seed(1)).tolist()
    return [token * num_adapters // num_tokens for token in order]


def _silu() -> Consumer:
    return Consumer(
        lambda y: silu_mul(y, torch.bfloat16),
        lambda y, h, weights, batch: expand_silu_mul(y, h, weights, batch, torch.bfloat16),
    )


def _rope(num_tokens: int) -> Consumer:
    angle = torch.rand(num_tokens, HEAD_DIM // 2, device="cuda")
    shape = (-(-num_tokens // BLOCK_SIZE) + 1, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    places = torch.randperm(num_tokens, device="cuda")
    rest = (angle.cos(), angle.sin(), _random(*shape), _random(*shape), places)
    return Consumer(
        lambda y: rope_kv_write(y, *rest),
        lambda y, h, weights, batch: expand_rope_kv_write(y, h, weights, batch, *rest),
    )


def _norm(num_tokens: int) -> Consumer:
    residual, weight = _random(num_tokens, HIDDEN), _random(HIDDEN)
    return Consumer(
        lambda y: add_rms_norm(y, residual, weight, EPS),
        lambda y, h, weights, batch: expand_add_rms_norm(
            y, residual, h, weights, batch, weight, EPS
        ),
    )


def consumer_of(group: Group, num_tokens: int) -> Consumer:
    """Of a group with three slices rope + KV write, with two SiLU·mul, with one add + norm."""
    if len(group.slice_sizes) == 2:
        return _silu()
    return _rope(num_tokens) if len(group.slice_sizes) == 3 else _norm(num_tokens)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)
