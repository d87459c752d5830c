"""The gated activation of the feed-forward block."""

import torch

from kernels.activation import reference
from kernels.contract import FLOATS, expect, expect_dtype


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Semantics: y = silu(gate_up[..., :I]) · gate_up[..., I:].

    gate_up [..., 2·I] fp32, fp16 or bf16, as the fused projection leaves it. Returns a new
    [..., I].
    """
    expect_dtype("gate_up", gate_up, *FLOATS)
    width = gate_up.shape[-1]
    expect(width % 2 == 0, "gate_up's last size", "an even number", width)
    if not gate_up.is_cuda:
        return reference.silu_mul(gate_up)
    from kernels.activation import kernel

    rows = gate_up.reshape(-1, width)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    return kernel.silu_mul(rows).view(*gate_up.shape[:-1], width // 2)
