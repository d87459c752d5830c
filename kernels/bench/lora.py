"""Table A: what batched LoRA adds to a layer of Llama-3.1-8B's shape, on CUDA in bf16.

A layer is its four projection groups; its figures are their sums. Overlap counts. Two forms of ours
are timed, and FORM is the line's gain: beside, base matmul and LoRA in one graph minus the base
matmul, as the peers; folded, the same with what reads the projection next on both sides. own_us is
what our matmul without LoRA takes beyond cuBLAS, which is the base of every gain.
"""

from collections.abc import Iterator, Mapping

import torch

from kernels.bench.backends import OURS, OURS_FP8, Backend
from kernels.bench.cases import LAYER, Point, floor_bytes
from kernels.bench.measure import Measured, best_peer, measure
from kernels.bench.timing import graph_us, read_bytes_per_us
from kernels.bench.workloads import make_pool
from kernels.lora import ActivePages

RANK = 16
NUM_ROUNDS = 15
# A step of Llama-3.1-8B plans once for so many layers.
NUM_LAYERS = 32
FORM = "folded"
Pairs = tuple[tuple[int, int], ...]


def points(pairs: Pairs) -> list[Point]:
    return [Point(projection, RANK, *pair) for pair in pairs for projection in LAYER]


def run(pairs: Pairs, backends: Mapping[str, Backend]) -> Iterator[dict[str, object]]:
    """One line a (tokens, distinct adapters) pair. backends: with ours in fp8 among them."""
    for num_tokens, num_adapters in pairs:
        each = [measure(p, backends, NUM_ROUNDS) for p in points(((num_tokens, num_adapters),))]
        plan_us = _plan_us(num_tokens, num_adapters)
        yield _line(num_tokens, num_adapters, each) | {
            # Once a step, of ours alone; not in the gain.
            "plan_us": round(plan_us, 2),
            "plan_us_per_layer": round(plan_us / NUM_LAYERS, 3),
        }
        torch.cuda.empty_cache()


def _line(num_tokens: int, num_adapters: int, each: list[Measured]) -> dict[str, object]:
    gain = {name: sum(m.gain[name] for m in each) for name in each[0].gain}
    alone = {name: sum(m.alone[name] for m in each) for name in each[0].alone}
    floor = sum(floor_bytes(group, RANK, num_tokens, num_adapters) for group in LAYER.values())
    return {
        "op": "lora",
        "table": "A",
        "dtype": "bfloat16",
        "tokens": num_tokens,
        "adapters": num_adapters,
        "rank": RANK,
        **_of_ours(gain[OURS], alone[OURS], each),
        **_of_peers(gain, alone),
        "floor_us": round(floor / read_bytes_per_us(), 2),
        "fp8": {
            "gain_us": round(sum(m.folded[OURS_FP8] for m in each), 2),
            "alone_us": round(alone[OURS_FP8], 2),
        },
        "spread": max(max(m.spread.values()) for m in each),
        "read_tb_s": round(read_bytes_per_us() / 1e6, 3),
    }


def _of_ours(beside_us: float, alone_us: float, each: list[Measured]) -> dict[str, object]:
    forms = {"beside": beside_us, "folded": sum(m.folded[OURS] for m in each)}
    return {
        "gain_us": round(forms[FORM], 2),
        "form": FORM,
        "forms": {name: round(us, 2) for name, us in forms.items()},
        "base_us": round(sum(m.base_us for m in each), 2),
        "own_us": round(sum(m.own_us for m in each), 2),
        # Over the faster of the two base matmuls, projection by projection.
        "net_us": round(sum(m.folded[OURS] - min(m.own_us, 0.0) for m in each), 2),
        "alone_us": round(alone_us, 2),
        "projections": {
            name: {
                "gain_us": round(m.gain[OURS], 2),
                "folded_us": round(m.folded[OURS], 2),
                "alone_us": round(m.alone[OURS], 2),
            }
            for name, m in zip(LAYER, each, strict=True)
        },
    }


def _of_peers(gain: dict[str, float], alone: dict[str, float]) -> dict[str, object]:
    """The best one's gain, then everybody's figures."""
    peer = best_peer(gain)
    return {
        "peer_us": round(peer[1], 2) if peer else None,
        "peer": peer[0] if peer else None,
        "peers": {
            name: {"gain_us": round(us, 2), "alone_us": round(alone[name], 2)}
            for name, us in gain.items()
            if name not in (OURS, OURS_FP8)
        },
    }


def _plan_us(num_tokens: int, num_adapters: int) -> float:
    """What the step's plan takes on the device: it depends on tokens and slots, not on widths."""
    slots = [token % num_adapters for token in range(num_tokens)]
    pool = make_pool(
        tuple(LAYER.values()),
        slots,
        [RANK] * num_adapters,
        dtype=torch.bfloat16,
        device="cuda",
    )
    pages = ActivePages(pool.weights)
    return graph_us(lambda: [pages.bind(pool.batch, {}) for _ in range(8)], 8)
