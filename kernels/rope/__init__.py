"""Rotary position embedding of queries and keys."""

import torch

from kernels.contract import FLOATS, expect, expect_dtype, expect_shape
from kernels.rope import reference


def apply_rope(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Semantics: each pair (x[i], x[i + Dr/2]) of a head turns by its token's angle; NeoX order.

    q [T, HQ, D], k [T, HKV, D]: fp32, fp16 or bf16, views of a fused projection allowed.
    cos, sin [T, Dr/2] fp32: the rows of the model's table for this step's positions, selected once
    a step by the caller; frequencies and their scaling are the caller's. Dr <= D; the rest of a
    head passes unchanged. Returns new (q, k).
    """
    expect_dtype("q", q, *FLOATS)
    expect_shape("k", k, (q.shape[0], "HKV", q.shape[2]))
    expect_shape("cos", cos, (q.shape[0], "Dr/2"))
    expect_shape("sin", sin, tuple(cos.shape))
    expect(2 * cos.shape[1] <= q.shape[2], "rotary size", f"at most {q.shape[2]}", 2 * cos.shape[1])
    return reference.rotate(q, cos, sin), reference.rotate(k, cos, sin)
