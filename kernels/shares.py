"""y [T, N], or in shares [P, T, N] whose sum it is: as kernels.linear leaves it for its reader."""

import torch

from kernels.contract import expect, expect_dtype, expect_shape


def check_shares(name: str, y: torch.Tensor, dtype: torch.dtype) -> None:
    """y [T, N] of dtype, or [P, T, N] of dtype or fp32, P at least 1; rows adjacent inside."""
    if y.dim() == 3:
        expect_dtype(name, y, torch.float32, dtype)
        expect(y.shape[0] > 0, f"{name}'s shares", "at least 1", y.shape[0])
    else:
        expect_shape(name, y, ("T", "N"))
        expect_dtype(name, y, dtype)
    expect(y.stride(-1) == 1, name, "rows of adjacent elements", f"strides {y.stride()}")


def in_shares(y: torch.Tensor) -> torch.Tensor:
    """[P, T, N], a view."""
    return y if y.dim() == 3 else y.unsqueeze(0)


def sum_shares(y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[T, N] of dtype: y itself where nothing is to be added."""
    if y.dim() == 2:
        return y
    return (y[0] if y.shape[0] == 1 else y.float().sum(0)).to(dtype)
