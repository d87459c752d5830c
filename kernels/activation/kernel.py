"""silu(gate) · up in Triton: blocks of columns, one launch."""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from kernels.launch import launch_options
from kernels.shares import in_shares
from kernels.shares_kernel import load_shares

# Best or within 3 % of it from 1 to 8192 tokens of a Llama-3.1-8B.
BLOCK_COLUMNS, NUM_WARPS = 1024, 4


@triton.jit
def silu_mul_kernel(
    # read: [SHARES, T, 2·I]
    gate_up,
    # written: [T, I] contiguous
    y,
    # strides
    stride_share,
    stride_gate_up,
    # meta
    I: tl.constexpr,  # noqa: E741
    SHARES: tl.constexpr,
    BI: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    BLOCKS: tl.constexpr = (I + BI - 1) // BI
    i_token = (tl.program_id(0) // BLOCKS).to(tl.int64)
    i_i = tl.program_id(0) % BLOCKS * BI + tl.arange(0, BI)
    m_i = i_i < I
    p_gate = gate_up + i_token * stride_gate_up + i_i
    b_gate = load_shares(p_gate, stride_share, m_i, SHARES)
    b_up = load_shares(p_gate + I, stride_share, m_i, SHARES)
    b_y = b_gate / (1.0 + tl.exp(-b_gate)) * b_up
    tl.store(y + i_token * I + i_i, b_y.to(y.dtype.element_ty), mask=m_i)


def silu_mul(gate_up: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """gate_up [T, 2·I] or [P, T, 2·I], rows adjacent inside. → a new [T, I] of dtype."""
    gate_up = in_shares(gate_up)
    num_shares, num_tokens, width = gate_up.shape
    inner = width // 2
    y = gate_up.new_empty((num_tokens, inner), dtype=dtype)
    if y.numel():
        silu_mul_kernel[(num_tokens * triton.cdiv(inner, BLOCK_COLUMNS),)](
            gate_up,
            y,
            gate_up.stride(0),
            gate_up.stride(1),
            I=inner,
            SHARES=num_shares,
            BI=BLOCK_COLUMNS,
            num_warps=NUM_WARPS,
            **launch_options(gate_up.device),
        )
    return y
