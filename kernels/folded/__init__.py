"""An adapter's expand folded into the op that reads the projection next: no launch of its own.

Each call equals expand, then its consumer, without the rounding between them. The CPU does just
that; a batch without adapters calls the consumer itself.
"""

import torch

from kernels.contract import FLOATS, expect, expect_device, expect_dtype, expect_shape
from kernels.folded import reference
from kernels.folded.shrunk import Shrunk
from kernels.lora import reference as lora_reference
from kernels.lora.batch import LoraBatch, LoraWeights, TilePlan
from kernels.lora.checks import check_x, serving_dtypes
from kernels.lora.table import MAX_DECODE_TOKENS
from kernels.rope.checks import check_rope_kv_write
from kernels.shares import check_shares

__all__ = [
    "Shrunk",
    "expand_add_rms_norm",
    "expand_rope_kv_write",
    "expand_silu_mul",
    "new_shrunk",
    "shrink",
]


def new_shrunk(x: torch.Tensor, weights: LoraWeights, batch: LoraBatch) -> Shrunk:
    """Room for shrink's result, to be made on the stream that reads it."""
    check_x(x, weights, batch)
    if not x.is_cuda:
        max_rank = batch.page_table.shape[1] * weights.a.shape[2]
        shape = (1, x.shape[0], weights.a.shape[1], max_rank)
        return Shrunk(x.new_empty(shape, dtype=torch.float32), None)
    from kernels.folded import rows_kernel
    from kernels.lora import kernel

    shares, plan = kernel.new_shares(x, weights, batch), _plan(weights, batch)
    # A list in full for each tile of a long prefill would take hundreds of megabytes.
    if x.shape[0] > MAX_DECODE_TOKENS:
        return Shrunk(shares, None)
    return Shrunk(shares, rows_kernel.new_rows(shares, plan, weights.a.shape[2], x.dtype))


def shrink(
    x: torch.Tensor, weights: LoraWeights, batch: LoraBatch, shrunk: Shrunk, dependent: bool = True
) -> None:
    """Semantics: kernels.lora's shrink of x [T, H] into shrunk (new_shrunk), in place.

    May run beside the base matmul. dependent: as in kernels.launch; False for the first launch
    beside another stream's.
    """
    check_x(x, weights, batch)
    max_rank = batch.page_table.shape[1] * weights.a.shape[2]
    shape = ("P", x.shape[0], weights.a.shape[1], max_rank)
    expect_shape("shrunk", shrunk.shares, shape)
    expect_device("shrunk", shrunk.shares, x.device)
    if not x.is_cuda:
        shrunk.shares.copy_(lora_reference.shrink(x, weights, batch)[None])
        return
    from kernels.folded import rows_kernel
    from kernels.lora import kernel

    plan = _plan(weights, batch)
    kernel.shrink(x, weights, batch, plan, shrunk.shares, dependent=dependent)
    if shrunk.listed is not None:
        rows_kernel.list_rows(shrunk.shares, plan, weights.a.shape[2], shrunk.listed)


def expand_silu_mul(
    gate_up: torch.Tensor,
    h: Shrunk,
    weights: LoraWeights,
    batch: LoraBatch,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Semantics: silu_mul(gate_up + h B), a new [T, I] of dtype, gate_up's unless said otherwise.

    gate_up [T, 2·I] or its shares [P, T, 2·I] (see kernels.shares), left as it is; h: this group's,
    shrunk of the projection's input.
    """
    dtype = dtype or gate_up.dtype
    _check_group(gate_up, dtype, h, weights, batch, num_slices=2)
    expect(
        weights.slice_sizes[0] == weights.slice_sizes[1],
        "slice_sizes",
        "two of one width",
        weights.slice_sizes,
    )
    if not gate_up.is_cuda:
        return reference.expand_silu_mul(gate_up, h.shares, weights, batch, dtype)
    from kernels.folded import silu_kernel

    return silu_kernel.expand_silu_mul(gate_up, h, weights, _plan(weights, batch), dtype)


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
    """Semantics: kernels.rope.rope_kv_write(qkv + h B, …) with whole heads turned: Dr = D.

    h: this group's, shrunk of the projection's input; qkv stays as it is.
    """
    _check_group(qkv, k_cache.dtype, h, weights, batch, num_slices=3)
    check_rope_kv_write(qkv, cos, sin, k_cache, v_cache, places, q_norm, k_norm)
    num_kv_heads, head_dim = k_cache.shape[2:]
    expect(2 * cos.shape[1] == head_dim, "rotary size", head_dim, 2 * cos.shape[1])
    kv_size = num_kv_heads * head_dim
    sizes = (qkv.shape[-1] - 2 * kv_size, kv_size, kv_size)
    expect(weights.slice_sizes == sizes, "slice_sizes", sizes, weights.slice_sizes)
    arguments = (cos, sin, k_cache, v_cache, places, q_norm, k_norm, eps)
    if not qkv.is_cuda:
        return reference.expand_rope_kv_write(qkv, h.shares, weights, batch, *arguments)
    from kernels.folded import rope_kernel

    plan = _plan(weights, batch)
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

    residual [T, H]; x so, or its shares [P, T, H]; h: this group's, shrunk of what x was made of;
    weight [H] of the norm. x stays as it is.
    """
    expect_dtype("residual", residual, *FLOATS)
    _check_group(x, residual.dtype, h, weights, batch, num_slices=1)
    expect_shape("residual", residual, tuple(x.shape[-2:]))
    expect_shape("weight", weight, (x.shape[-1],))
    expect_dtype("weight", weight, residual.dtype)
    for name, tensor in (("residual", residual), ("weight", weight)):
        expect_device(name, tensor, x.device)
        expect(tensor.stride(-1) == 1, f"{name}'s last stride", 1, tensor.stride(-1))
    if not x.is_cuda:
        return reference.expand_add_rms_norm(x, residual, h.shares, weights, batch, weight, eps)
    from kernels.folded import norm_kernel

    plan = _plan(weights, batch)
    return norm_kernel.expand_add_rms_norm(x, residual, h, weights, plan, weight, eps)


def _plan(weights: LoraWeights, batch: LoraBatch) -> TilePlan:
    """The plan that ActivePages bound to the batch, or one of this call."""
    from kernels.lora.plan import plan_tiles

    return batch.plan or plan_tiles(batch, weights.b.shape[1])


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
    max_rank = batch.page_table.shape[1] * weights.b.shape[1]
    expect_shape("h", h.shares, ("P", y.shape[-2], num_slices, max_rank))
    expect_device("h", h.shares, y.device)
