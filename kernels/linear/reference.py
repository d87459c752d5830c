"""y = x Wᵀ in fp32."""

import torch


def linear_shares(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [T, H], weight [N, H] → [1, T, N] of x's dtype."""
    return (x.float() @ weight.float().T).to(x.dtype)[None]
