"""y = x Wᵀ + bias in torch, which sums in fp32."""

import torch
import torch.nn.functional as F


def linear_shares(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [T, H], weight [N, H], bias [N] → [1, T, N] of x's dtype."""
    return F.linear(x, weight, bias)[None]
