"""A projection, the adapters of a step, and the op that reads the two.

On CUDA a projection leaves LoRA's second half, and its sum over shares, to its reader
(kernels/folded); on the CPU the projection is whole.
"""

from dataclasses import dataclass

import torch

from inference.lora import LoraStep
from inference.models.linear import Linear
from kernels import activation, folded, norm, rope
from kernels.lora import LoraBatch, LoraWeights, Shrunk
from kernels.shares import sum_shares


@dataclass(frozen=True)
class Pending:
    """What is still to be added to a projection: h B of the step's adapters."""

    h: Shrunk
    weights: LoraWeights
    batch: LoraBatch


@dataclass(frozen=True)
class Projected:
    """y [T, N], or its shares [P, T, N] (kernels/shares.py). May be overwritten by its reader."""

    y: torch.Tensor
    pending: Pending | None = None


def project(
    number: int, group: int, linear: Linear, x: torch.Tensor, lora: LoraStep | None
) -> Projected:
    """x [T, in] through a layer's projection group and the adapters of its tokens."""
    weights = None if lora is None else lora.weights_of(number, group)
    if lora is None or weights is None:
        return Projected(linear(x))
    if x.is_cuda:
        y, h = linear.with_shrink(x, weights, lora.batch)
        return Projected(y, Pending(h, weights, lora.batch))
    y = sum_shares(linear(x), x.dtype)
    lora.add(y, x, weights)
    return Projected(y)


def silu_mul(gate_up: Projected, dtype: torch.dtype) -> torch.Tensor:
    """[T, 2·I] → [T, I] of dtype."""
    pending = gate_up.pending
    if pending is None:
        return activation.silu_mul(gate_up.y, dtype)
    return folded.expand_silu_mul(gate_up.y, pending.h, pending.weights, pending.batch, dtype)


def add_rms_norm(
    x: Projected, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """residual [T, H] += x, in place; → the norm of it."""
    pending = x.pending
    if pending is None:
        return norm.add_rms_norm(x.y, residual, weight, eps)
    return folded.expand_add_rms_norm(
        x.y, residual, pending.h, pending.weights, pending.batch, weight, eps
    )


def rope_kv_write(
    qkv: Projected,
    angles: tuple[torch.Tensor, torch.Tensor],
    kv: torch.Tensor,
    places: torch.Tensor,
    norms: tuple[torch.Tensor | None, torch.Tensor | None],
    eps: float,
) -> torch.Tensor:
    """kv [2, NB, BS, HKV, D] of the layer, updated; norms of q and k. → q [T, HQ, D]."""
    (q_norm, k_norm), pending = norms, qkv.pending
    arguments = (*angles, kv[0], kv[1], places)
    if pending is None:
        return rope.rope_kv_write(qkv.y, *arguments, q_norm=q_norm, k_norm=k_norm, eps=eps)
    lora = (pending.h, pending.weights, pending.batch)
    return folded.expand_rope_kv_write(
        qkv.y, *lora, *arguments, q_norm=q_norm, k_norm=k_norm, eps=eps
    )
