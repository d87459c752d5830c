"""The gated activation of the feed-forward block."""

import torch

from kernels.activation import reference
from kernels.contract import FLOATS, expect, expect_dtype


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Semantics: y = silu(gate_up[..., :I]) · gate_up[..., I:].

    gate_up [..., 2·I] fp32, fp16 or bf16, as the fused projection leaves it. Returns [..., I].
    """
    expect_dtype("gate_up", gate_up, *FLOATS)
    expect(gate_up.shape[-1] % 2 == 0, "gate_up's last size", "an even number", gate_up.shape[-1])
    return reference.silu_mul(gate_up)
