"""The base projection of a step with few tokens, its sum over K left in shares for the reader."""

import torch

from kernels.contract import (
    FLOATS,
    expect,
    expect_contiguous,
    expect_device,
    expect_dtype,
    expect_shape,
)
from kernels.linear import reference
from kernels.linear.table import linear_blocks


def linear_shares(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Semantics: Σ_p y[p] = x Wᵀ + bias. The reader adds the shares, in order.

    x [T, H] fp32, fp16 or bf16, rows contiguous; weight [N, H] and bias [N] of x's dtype. Returns
    a new y [P, T, N]: P shares of H, in fp32 if P > 1, else in x's dtype. On CUDA a kernel of our
    own where it is the faster (T <= 128, reading W bounds the time), else torch's and P = 1.
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
        expect_contiguous("bias", bias)
    for name, tensor in (("x", x), ("weight", weight)):
        expect(tensor.stride(1) == 1, f"{name}'s last stride", 1, tensor.stride(1))
    (num_tokens, hidden), width = x.shape, weight.shape[0]
    blocks = linear_blocks(num_tokens, hidden, width, x.element_size())
    if x.is_cuda and blocks is not None:
        from kernels.linear import kernel

        return kernel.linear_shares(x, weight, bias, blocks)
    return reference.linear_shares(x, weight, bias)
