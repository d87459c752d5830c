"""Expand, then the consumer: what each folded op equals, up to the rounding between the two.

The CPU's form, and CUDA's where it is the faster one.
"""

import torch

from kernels.activation import silu_mul
from kernels.lora import LoraBatch, LoraWeights, Shrunk, expand
from kernels.norm import add_rms_norm
from kernels.rope import rope_kv_write
from kernels.shares import sum_shares


def expand_silu_mul(
    gate_up: torch.Tensor,
    h: Shrunk,
    weights: LoraWeights,
    batch: LoraBatch,
    dtype: torch.dtype,
) -> torch.Tensor:
    return silu_mul(_expanded(gate_up, h, weights, batch, dtype))


def expand_rope_kv_write(
    qkv: torch.Tensor,
    h: Shrunk,
    weights: LoraWeights,
    batch: LoraBatch,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    places: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    qkv = _expanded(qkv, h, weights, batch, k_cache.dtype)
    return rope_kv_write(
        qkv, cos, sin, k_cache, v_cache, places, q_norm=q_norm, k_norm=k_norm, eps=eps
    )


def expand_add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    h: Shrunk,
    weights: LoraWeights,
    batch: LoraBatch,
    weight: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    return add_rms_norm(_expanded(x, h, weights, batch, residual.dtype), residual, weight, eps)


def _expanded(
    y: torch.Tensor,
    h: Shrunk,
    weights: LoraWeights,
    batch: LoraBatch,
    dtype: torch.dtype,
) -> torch.Tensor:
    """y [T, N] or [P, T, N], in place unless shares are to be added."""
    y = sum_shares(y, dtype)
    expand(y, h, weights, batch)
    return y
