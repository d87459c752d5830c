"""The gated activation of the feed-forward block."""

import torch

from kernels.activation import reference
from kernels.contract import FLOATS, expect, expect_dtype
from kernels.shares import check_shares


def silu_mul(gate_up: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Semantics: y = silu(gate_up[..., :I]) · gate_up[..., I:].

    gate_up [T, 2·I] fp32, fp16 or bf16, as the fused projection leaves it, or its shares
    [P, T, 2·I] (see kernels.shares), added in fp32. Returns a new [T, I] of dtype, which is
    gate_up's unless said otherwise.
    """
    expect_dtype("gate_up", gate_up, *FLOATS)
    dtype = dtype or gate_up.dtype
    expect(dtype in FLOATS, "dtype", " or ".join(map(str, FLOATS)), dtype)
    check_shares("gate_up", gate_up, dtype)
    width = gate_up.shape[-1]
    expect(width % 2 == 0, "gate_up's last size", "an even number", width)
    if not gate_up.is_cuda:
        return reference.silu_mul(gate_up, dtype)
    from kernels.activation import kernel

    return kernel.silu_mul(gate_up, dtype)
