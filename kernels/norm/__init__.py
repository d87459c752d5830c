"""Root mean square norm, and the residual add before it."""

import torch

from kernels.contract import FLOATS, expect, expect_device, expect_dtype, expect_shape
from kernels.norm import reference
from kernels.shares import check_shares


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Semantics: y = x / sqrt(mean(x², last) + eps) · weight.

    x [..., H] fp32, fp16 or bf16, a view of heads [T, heads, H] allowed; weight [H] of x's dtype.
    Returns a new tensor of x's shape and dtype.
    """
    _check(x, weight, eps)
    if not x.is_cuda:
        return reference.rms_norm(x, weight, eps)
    from kernels.norm import kernel

    rows = x if x.dim() <= 3 else x.flatten(0, -2)
    return kernel.rms_norm(_adjacent(rows), weight.contiguous(), eps).view(x.shape)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Semantics: residual += x, in place; returns rms_norm(residual).

    residual [T, H] fp32, fp16 or bf16; x [T, H] of its dtype, or shares [P, T, H] of x (see
    kernels.shares), added in fp32; weight [H]. The sum is rounded to residual's dtype before the
    norm. The norm is a new tensor.
    """
    expect_shape("residual", residual, ("T", "H"))
    expect(residual.stride(1) == 1, "residual", "rows of adjacent elements", residual.stride())
    _check(residual, weight, eps, "residual")
    check_shares("x", x, residual.dtype)
    expect_shape("x", x, (*x.shape[:-2], *residual.shape))
    expect_device("x", x, residual.device)
    if not x.is_cuda:
        return reference.add_rms_norm(x, residual, weight, eps)
    from kernels.norm import kernel

    return kernel.add_rms_norm(x, residual, weight.contiguous(), eps)


def _adjacent(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _check(x: torch.Tensor, weight: torch.Tensor, eps: float, name: str = "x") -> None:
    expect(eps >= 0, "eps", "at least 0", eps)
    expect_dtype(name, x, *FLOATS)
    expect_shape("weight", weight, (x.shape[-1],))
    expect_dtype("weight", weight, x.dtype)
    expect_device("weight", weight, x.device)
