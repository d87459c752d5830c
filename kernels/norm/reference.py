"""y = x / sqrt(mean(x²) + eps) · w, in fp32; rounded to x's dtype before w, as in training."""

import torch

from kernels.shares import sum_shares


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * normed.to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """residual += x, in place; returns its norm. x [T, H] or its shares [P, T, H]."""
    return rms_norm(residual.add_(sum_shares(x, residual.dtype)), weight, eps)
