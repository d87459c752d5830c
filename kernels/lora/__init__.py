"""Batched LoRA over rank pages: any mix of adapters and ranks in one step.

Tokens are in the dtype of the rows; with rows stored in fp8, in any of fp32, fp16 and bf16.

Triton is imported where a CUDA tensor asks for it: the CPU needs none.
"""

from collections.abc import Callable
from functools import partial

import torch

from kernels.launch import beside, fork, join
from kernels.lora import reference
from kernels.lora.batch import LoraBatch, LoraWeights, TilePlan
from kernels.lora.checks import check_base, check_h, check_x, check_y
from kernels.lora.dense import ActivePages, dense_expand, dense_shrink
from kernels.lora.shrunk import Shrunk
from kernels.lora.table import shrinks_first

__all__ = [
    "ActivePages",
    "LoraBatch",
    "LoraWeights",
    "Shrunk",
    "TilePlan",
    "add_lora",
    "expand",
    "lora_linear",
    "plan_of",
    "shrink",
    "shrink_beside",
]


def lora_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    weights: LoraWeights,
    batch: LoraBatch,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Semantics: y[t] = W x[t] + bias + scale · B A x[t]. Returns a new y [T, N].

    x [T, H], weight [N, H], bias [N], all of the rows' dtype. On CUDA the shrink runs on a
    second stream beside the base matmul.
    """
    check_base(x, weight, bias, weights)
    matmul = partial(torch.nn.functional.linear, x, weight, bias)
    y, h = shrink_beside(matmul, x, weights, batch)
    expand(y, h, weights, batch)
    return y


def add_lora(y: torch.Tensor, x: torch.Tensor, weights: LoraWeights, batch: LoraBatch) -> None:
    """Semantics: y[t] += scale · B A x[t] for each token's adapter, in place.

    x [T, H], y [T, N] of the rows' dtype.
    """
    check_y(y, weights, batch)
    expand(y, shrink(x, weights, batch), weights, batch)


def shrink_beside(
    matmul: Callable[[], torch.Tensor], x: torch.Tensor, weights: LoraWeights, batch: LoraBatch
) -> tuple[torch.Tensor, Shrunk]:
    """What matmul returns, and shrink(x); on CUDA the two run beside each other. Capturable.

    x is complete when the call is made: matmul does not write it.
    """
    if not x.is_cuda:
        h = shrink(x, weights, batch)
        return matmul(), h
    check_x(x, weights, batch)
    from kernels.lora import kernel

    plan = plan_of(weights, batch)
    is_first = shrinks_first(x.shape[0], x.shape[1], weights.b.shape[2])
    h = kernel.new_shrunk(x, weights, batch, plan)
    fork(x.device)
    y = None if is_first else matmul()
    with beside(x.device):
        kernel.shrink(x, weights, batch, plan, h, dependent=False)
    y = matmul() if y is None else y
    join(x.device)
    return y, h


def shrink(x: torch.Tensor, weights: LoraWeights, batch: LoraBatch) -> Shrunk:
    """Semantics: h[t, s, r] = scales[slot, column + s] · Σ_i A_s[r, i] x[t, i].

    x [T, H] of the rows' dtype. The CPU takes the dense form when ActivePages bound one to the
    batch, else the reference.
    """
    check_x(x, weights, batch)
    if batch.dense is not None:
        return Shrunk(dense_shrink(x, weights, batch.dense)[None], weights.column)
    if not x.is_cuda:
        return Shrunk(reference.shrink(x, weights, batch)[None], weights.column)
    from kernels.lora import kernel

    plan = plan_of(weights, batch)
    h = kernel.new_shrunk(x, weights, batch, plan)
    kernel.shrink(x, weights, batch, plan, h)
    return h


def expand(y: torch.Tensor, h: Shrunk, weights: LoraWeights, batch: LoraBatch) -> None:
    """Semantics: y[t, n of slice s] += Σ_r h[t, s, r] B[r, n], in place, summed in fp32.

    y [T, N] of the rows' dtype, h as shrink returns it. Tokens without adapter keep their bits.
    """
    check_y(y, weights, batch)
    check_h(h, weights, batch)
    if batch.dense is not None:
        dense_expand(y, h.shares[0], weights, batch.dense)
    elif not y.is_cuda:
        reference.expand(y, h.shares.float().sum(0), weights, batch)
    else:
        from kernels.lora import kernel

        kernel.expand(y, h, weights, plan_of(weights, batch))


def plan_of(weights: LoraWeights, batch: LoraBatch) -> TilePlan:
    """The plan that ActivePages bound to the batch, or one of this call. CUDA."""
    if batch.plan is not None:
        return batch.plan
    from kernels.lora.plan import plan_tiles

    return plan_tiles(batch, weights.b.shape[1])
