"""A projection with adapters whose expand is folded into the op that reads the projection next.

linear_shrink gives the projection's two halves, base and shrunk; each other call equals expand,
then its consumer, without the rounding between them. Where these two in turn are faster (see
table.py), and on the CPU, that is what runs. A batch without adapters calls the consumer itself.
"""

from functools import partial

import torch

from kernels.contract import FLOATS, expect, expect_device, expect_dtype, expect_shape
from kernels.folded import in_turn
from kernels.folded.table import folds_narrow
from kernels.linear import linear_shares
from kernels.lora import LoraBatch, LoraWeights, Shrunk, plan_of, shrink_beside
from kernels.lora.checks import check_base, check_h, serving_dtypes
from kernels.rope.checks import check_rope_kv_write
from kernels.shares import check_shares

__all__ = [
    "expand_add_rms_norm",
    "expand_rope_kv_write",
    "expand_silu_mul",
    "linear_shrink",
]


def linear_shrink(
    x: torch.Tensor,
    weight: torch.Tensor,
    weights: LoraWeights,
    batch: LoraBatch,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Shrunk]:
    """Semantics: y = x Wᵀ + bias in shares [P, T, N], as linear_shares; h = scale · A x.

    x [T, H], weight [N, H], bias [N], all of the rows' dtype. On CUDA side by side.
    """
    check_base(x, weight, bias, weights)
    return shrink_beside(partial(linear_shares, x, weight, bias), x, weights, batch)


def expand_silu_mul(
    gate_up: torch.Tensor,
    h: Shrunk,
    weights: LoraWeights,
    batch: LoraBatch,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Semantics: silu_mul(gate_up + h B), a new [T, I] of dtype, gate_up's unless said otherwise.

    gate_up [T, 2·I] or its shares [P, T, 2·I] (see kernels.shares); it may be overwritten. h: this
    group's, shrunk of the projection's input.
    """
    dtype = dtype or gate_up.dtype
    _check_group(gate_up, dtype, h, weights, batch, num_slices=2)
    widths = weights.slice_sizes
    expect(widths[0] == widths[1], "slice_sizes", "two of one width", widths)
    if not gate_up.is_cuda:
        return in_turn.expand_silu_mul(gate_up, h, weights, batch, dtype)
    from kernels.folded import silu_kernel

    return silu_kernel.expand_silu_mul(gate_up, h, weights, plan_of(weights, batch), dtype)


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
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """Semantics: kernels.rope.rope_kv_write(qkv + h B, …); qkv may be overwritten.

    h: this group's, shrunk of the projection's input. Folded if whole heads are turned, Dr = D.
    """
    _check_group(qkv, k_cache.dtype, h, weights, batch, num_slices=3)
    arguments = (cos, sin, k_cache, v_cache, places, q_norm, k_norm, eps)
    check_rope_kv_write(qkv, *arguments)
    num_kv_heads, head_dim = k_cache.shape[2:]
    kv_size = num_kv_heads * head_dim
    sizes = (qkv.shape[-1] - 2 * kv_size, kv_size, kv_size)
    expect(weights.slice_sizes == sizes, "slice_sizes", sizes, weights.slice_sizes)
    whole = 2 * cos.shape[1] == head_dim
    if not (qkv.is_cuda and whole and folds_narrow(qkv.shape[-2])):
        return in_turn.expand_rope_kv_write(qkv, h, weights, batch, *arguments)
    from kernels.folded import rope_kernel

    plan = plan_of(weights, batch)
    return rope_kernel.expand_rope_kv_write(qkv, h, weights, plan, *arguments)


def expand_add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    h: Shrunk,
    weights: LoraWeights,
    batch: LoraBatch,
    weight: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Semantics: residual += x + h B, in place; returns rms_norm(residual), a new [T, H].

    residual [T, H]; x so, or its shares [P, T, H], may be overwritten; h: this group's, shrunk of
    what x was made of; weight [H] of the norm.
    """
    expect_dtype("residual", residual, *FLOATS)
    expect(eps >= 0, "eps", "at least 0", eps)
    _check_group(x, residual.dtype, h, weights, batch, num_slices=1)
    expect_shape("residual", residual, tuple(x.shape[-2:]))
    expect_shape("weight", weight, (x.shape[-1],))
    expect_dtype("weight", weight, residual.dtype)
    for name, tensor in (("residual", residual), ("weight", weight)):
        expect_device(name, tensor, x.device)
        expect(tensor.stride(-1) == 1, f"{name}'s last stride", 1, tensor.stride(-1))
    if not (x.is_cuda and folds_narrow(x.shape[-2])):
        return in_turn.expand_add_rms_norm(x, residual, h, weights, batch, weight, eps)
    from kernels.folded import norm_kernel

    plan = plan_of(weights, batch)
    return norm_kernel.expand_add_rms_norm(x, residual, h, weights, plan, weight, eps)


def _check_group(
    y: torch.Tensor,
    dtype: torch.dtype,
    h: Shrunk,
    weights: LoraWeights,
    batch: LoraBatch,
    num_slices: int,
) -> None:
    """y: the base projection's output or its shares; dtype: what it is without shares."""
    expect(len(weights.slice_sizes) == num_slices, "slices", num_slices, len(weights.slice_sizes))
    check_shares("y", y, dtype)
    dtypes = serving_dtypes(weights)
    expect(dtype in dtypes, "y's dtype", " or ".join(map(str, dtypes)), dtype)
    expect_shape("y", y, (*y.shape[:-2], batch.token_slot.shape[0], weights.b.shape[2]))
    expect_device("y", y, weights.b.device)
    check_h(h, weights, batch)
