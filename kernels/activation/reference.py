"""y = silu(gate) · up."""

import torch

from kernels.shares import sum_shares


def silu_mul(gate_up: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    gate, up = sum_shares(gate_up, dtype).chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up
