"""The small ops of a layer of Llama-3.1-8B's shape, on CUDA in bf16.

Each op alone: one graph over as many inputs as exceed the L2 cache, so that every byte comes from
memory. In the engine most of them were written just before and are still in the cache.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from kernels.activation import reference as activation_reference
from kernels.activation import silu_mul
from kernels.attention import kv_write
from kernels.bench.timing import graph_us
from kernels.norm import add_rms_norm, rms_norm
from kernels.norm import reference as norm_reference
from kernels.rope import rope_kv_write
from kernels.rope.reference import rotate
from kernels.sampling import argmax
from kernels.sampling import reference as sampling_reference

TOKENS = (1, 16, 64, 256, 2048, 8192)
HIDDEN, INNER, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4096, 14336, 32, 8, 128
VOCAB = 128256
EPS = 1e-5
BLOCK_SIZE = 16
CACHE_BYTES = 3 * 60 * 10**6
MAX_SETS = 64


@dataclass(frozen=True)
class Work:
    """One op on one input: as one launch, and as the torch calls that it replaces."""

    fused: Callable[[], object]
    eager: Callable[[], object]
    num_bytes: int


def run(tokens: tuple[int, ...] = TOKENS) -> Iterator[dict[str, object]]:
    """One result an op and number of tokens."""
    bandwidth = copy_bytes_per_us()
    for op, make in OPS.items():
        for num_tokens in tokens:
            yield {"op": op, "tokens": num_tokens} | measure(make, num_tokens, bandwidth)
            torch.cuda.empty_cache()


def measure(make: Callable[[int], Work], num_tokens: int, bandwidth: float) -> dict[str, object]:
    works = [make(num_tokens)]
    num_bytes = works[0].num_bytes
    num_sets = min(MAX_SETS, -(-CACHE_BYTES // num_bytes))
    works += [make(num_tokens) for _ in range(num_sets - 1)]
    fused_us = graph_us(lambda: [work.fused() for work in works], num_sets)
    eager_us = graph_us(lambda: [work.eager() for work in works], num_sets)
    return {
        "dtype": "bfloat16",
        "us": round(fused_us, 2),
        "eager_us": round(eager_us, 2),
        "bytes": num_bytes,
        "floor_us": round(num_bytes / bandwidth, 2),
        "share_of_bandwidth": round(num_bytes / bandwidth / fused_us, 3),
        "copy_tb_s": round(bandwidth / 1e6, 3),
    }


def copy_bytes_per_us() -> float:
    """Bandwidth of one GiB read and one written, by a kernel: graphs copy with a slower engine."""
    source = torch.ones(2**28, device="cuda")
    target = torch.empty_like(source)
    return (
        2
        * source.numel()
        * 4
        / graph_us(lambda: [torch.neg(source, out=target) for _ in range(3)], 3)
    )


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def _norm(num_tokens: int) -> Work:
    x, weight = _random(num_tokens, HIDDEN), _random(HIDDEN)
    return Work(
        lambda: rms_norm(x, weight, EPS),
        lambda: norm_reference.rms_norm(x, weight, EPS),
        2 * (2 * x.numel() + HIDDEN),
    )


def _add_norm(num_tokens: int) -> Work:
    x, residual, weight = _random(num_tokens, HIDDEN), _random(num_tokens, HIDDEN), _random(HIDDEN)
    return Work(
        lambda: add_rms_norm(x, residual, weight, EPS),
        lambda: norm_reference.add_rms_norm(x, residual, weight, EPS),
        2 * (4 * x.numel() + HIDDEN),
    )


def _silu(num_tokens: int) -> Work:
    gate_up = _random(num_tokens, 2 * INNER)
    return Work(
        lambda: silu_mul(gate_up),
        lambda: activation_reference.silu_mul(gate_up, gate_up.dtype),
        2 * 3 * num_tokens * INNER,
    )


def _rope(num_tokens: int) -> Work:
    qkv = _random(num_tokens, (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM)
    angle = torch.rand(num_tokens, HEAD_DIM // 2, device="cuda")
    cos, sin = angle.cos(), angle.sin()
    shape = (-(-num_tokens // BLOCK_SIZE) + 1, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    k_cache, v_cache = _random(*shape), _random(*shape)
    places = torch.randperm(num_tokens, device="cuda")

    def eager() -> None:
        heads = qkv.view(num_tokens, -1, HEAD_DIM)
        q, k, v = torch.split(heads, [NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS], dim=1)
        rotate(q, cos, sin)
        kv_write(rotate(k, cos, sin), v, k_cache, v_cache, places)

    return Work(
        lambda: rope_kv_write(qkv, cos, sin, k_cache, v_cache, places),
        eager,
        2 * 2 * qkv.numel() + 2 * 4 * cos.numel() + 8 * num_tokens,
    )


def _argmax(num_rows: int) -> Work:
    logits = _random(num_rows, VOCAB)
    return Work(
        lambda: argmax(logits), lambda: sampling_reference.argmax(logits), 2 * num_rows * VOCAB
    )


OPS: dict[str, Callable[[int], Work]] = {
    "argmax": _argmax,
    "rms_norm": _norm,
    "add_rms_norm": _add_norm,
    "rope_kv_write": _rope,
    "silu_mul": _silu,
}
