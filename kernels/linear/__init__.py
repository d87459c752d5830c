"""The base projection of a step with few tokens, its sum over K left in shares for the reader."""

import torch

from kernels.contract import FLOATS, expect, expect_device, expect_dtype, expect_shape
from kernels.linear import reference
from kernels.linear.table import MAX_TOKENS


def linear_shares(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Semantics: Σ_p y[p] = x Wᵀ + bias. The reader adds the shares, in order.

    x [T, H] fp32, fp16 or bf16, rows contiguous; weight [N, H] and bias [N] of x's dtype. Returns
    a new y [P, T, N]: P shares of H, in fp32 if P > 1, else in x's dtype. On CUDA a kernel of our
    own for T <= 64, where reading W bounds the time; beyond, and on the CPU, torch's and P = 1.
    """
    expect_dtype("x", x, *FLOATS)
    expect_shape("x", x, ("T", "H"))
    expect_shape("weight", weight, ("N", x.shape[1]))
    expect_dtype("weight", weight, x.dtype)
    expect_device("weight", weight, x.device)
    if bias is not None:
        expect_shape("bias", bias, (weight.shape[0],))
        expect_dtype("bias", bias, x.dtype)
        expect_device("bias", bias, x.device)
    for name, tensor in (("x", x), ("weight", weight)):
        expect(tensor.stride(1) == 1, f"{name}'s last stride", 1, tensor.stride(1))
    if x.is_cuda and x.shape[0] <= MAX_TOKENS:
        from kernels.linear import kernel

        return kernel.linear_shares(x, weight, bias)
    if x.is_cuda:
        return torch.nn.functional.linear(x, weight, bias)[None]
    return reference.linear_shares(x, weight, bias)
