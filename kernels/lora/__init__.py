"""Batched LoRA over rank pages: any mix of adapters and ranks in one step.

Tokens are in the dtype of the rows; with rows stored in fp8, in any of fp32, fp16 and bf16.

Triton is imported where a CUDA tensor asks for it: the CPU needs none.
"""

import torch

from kernels.contract import expect_device, expect_dtype, expect_shape
from kernels.launch import beside, fork, join
from kernels.lora import reference
from kernels.lora.batch import DenseBatch, DenseRows, LoraBatch, LoraWeights, TilePlan
from kernels.lora.checks import check_base, check_x, check_y
from kernels.lora.dense import ActivePages, dense_shrink_expand

__all__ = [
    "ActivePages",
    "DenseBatch",
    "DenseRows",
    "LoraBatch",
    "LoraWeights",
    "TilePlan",
    "add_lora",
    "expand",
    "lora_linear",
    "shrink",
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
    check_x(x, weights, batch)
    check_base(x, weight, bias, weights)
    if not x.is_cuda:
        y = torch.nn.functional.linear(x, weight, bias)
        add_lora(y, x, weights, batch)
        return y
    from kernels.lora import kernel

    plan = _plan(weights, batch)
    h = kernel.new_shares(x, weights, batch)
    fork(x.device)
    y = torch.nn.functional.linear(x, weight, bias)
    # After the matmul, so that it has the device first and the shrink fills what is left of it.
    with beside(x.device):
        kernel.shrink(x, weights, batch, plan, h, dependent=False)
    join(x.device)
    kernel.expand(h, weights, plan, y)
    return y


def add_lora(y: torch.Tensor, x: torch.Tensor, weights: LoraWeights, batch: LoraBatch) -> None:
    """Semantics: y[t] += scale · B A x[t] for each token's adapter, in place.

    x [T, H], y [T, N] of the rows' dtype. The CPU takes the dense form when ActivePages bound
    one to the batch, else the reference; CUDA takes shrink and expand.
    """
    check_x(x, weights, batch)
    check_y(y, weights, batch)
    if batch.dense is not None:
        dense_shrink_expand(x, y, weights, batch.dense)
    elif x.is_cuda:
        from kernels.lora import kernel

        plan, h = _plan(weights, batch), kernel.new_shares(x, weights, batch)
        kernel.shrink(x, weights, batch, plan, h)
        kernel.expand(h, weights, plan, y)
    else:
        reference.expand(reference.shrink(x, weights, batch), weights, batch, y)


def shrink(x: torch.Tensor, weights: LoraWeights, batch: LoraBatch) -> torch.Tensor:
    """Semantics: Σ_p h[p, t, s, r] = scales[slot, column + s] · Σ_i A_s[r, i] x[t, i].

    x [T, H] of the rows' dtype. Returns h [P, T, NS, max_pages·PR]: P shares of H, in fp32 if
    P > 1, else in x's dtype (fp32 on the CPU). Rank rows beyond a token's rank are zero on the CPU
    and unwritten on CUDA: expand does not read them.
    """
    check_x(x, weights, batch)
    if x.is_cuda:
        from kernels.lora import kernel

        h = kernel.new_shares(x, weights, batch)
        kernel.shrink(x, weights, batch, _plan(weights, batch), h)
        return h
    return reference.shrink(x, weights, batch)[None]


def expand(h: torch.Tensor, weights: LoraWeights, batch: LoraBatch, y: torch.Tensor) -> None:
    """Semantics: y[t, n of slice s] += Σ_p Σ_r h[p, t, s, r] B[r, n], in place, summed in fp32.

    h as shrink returns it. y [T, N] of the rows' dtype; tokens without adapter keep their bits.
    """
    check_y(y, weights, batch)
    num_slices, max_rank = weights.a.shape[1], batch.page_table.shape[1] * weights.a.shape[2]
    expect_shape("h", h, ("P", y.shape[0], num_slices, max_rank))
    expect_dtype("h", h, torch.float32, y.dtype)
    expect_device("h", h, y.device)
    if y.is_cuda:
        from kernels.lora import kernel

        kernel.expand(h.contiguous(), weights, _plan(weights, batch), y)
    else:
        reference.expand(h.float().sum(0), weights, batch, y)


def _plan(weights: LoraWeights, batch: LoraBatch) -> TilePlan:
    if batch.plan is not None:
        return batch.plan
    from kernels.lora.plan import plan_tiles

    return plan_tiles(batch, weights.a.shape[2])
