"""Expand, then the consumer: what each folded op equals, up to the rounding between the two."""

import torch

from kernels.activation.reference import silu_mul
from kernels.lora.batch import LoraBatch, LoraWeights
from kernels.lora.reference import expand
from kernels.norm.reference import add_rms_norm
from kernels.rope.reference import rope_kv_write
from kernels.shares import sum_shares


def expand_silu_mul(
    gate_up: torch.Tensor,
    h: torch.Tensor,
    weights: LoraWeights,
    batch: LoraBatch,
    dtype: torch.dtype,
) -> torch.Tensor:
    return silu_mul(_expanded(gate_up, h, weights, batch, dtype), dtype)


def expand_rope_kv_write(
    qkv: torch.Tensor,
    h: torch.Tensor,
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
    return rope_kv_write(qkv, cos, sin, k_cache, v_cache, places, q_norm, k_norm, eps)


def expand_add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    h: torch.Tensor,
    weights: LoraWeights,
    batch: LoraBatch,
    weight: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    return add_rms_norm(_expanded(x, h, weights, batch, residual.dtype), residual, weight, eps)


def _expanded(
    y: torch.Tensor,
    h: torch.Tensor,
    weights: LoraWeights,
    batch: LoraBatch,
    dtype: torch.dtype,
) -> torch.Tensor:
    """y [T, N] or [P, T, N]; h [P, T, NS, max_rank]."""
    y = sum_shares(y, dtype).clone()
    expand(h.float().sum(0), weights, batch, y)
    return y
