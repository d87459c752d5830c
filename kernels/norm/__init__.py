"""Root mean square norm, and the residual add before it."""

import torch

from kernels.contract import FLOATS, expect_dtype, expect_shape
from kernels.norm import reference


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Semantics: y = x / sqrt(mean(x², last) + eps) · weight.

    x [..., H] fp32, fp16 or bf16; weight [H]. Returns a new tensor of x's shape and dtype.
    """
    expect_dtype("x", x, *FLOATS)
    expect_shape("weight", weight, (x.shape[-1],))
    return reference.rms_norm(x, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Semantics: s = x + residual; returns (rms_norm(s), s).

    x, residual [T, H] of one dtype; weight [H]. Both results are new tensors.
    """
    expect_shape("residual", residual, tuple(x.shape))
    expect_dtype("residual", residual, x.dtype)
    total = x + residual
    return rms_norm(total, weight, eps), total
