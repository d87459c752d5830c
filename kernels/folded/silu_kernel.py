"""silu(gate + its delta) · (up + its delta) in one launch, from the base projection's output."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl

from kernels.folded.delta import FIRST, delta, rows_at
from kernels.folded.table import Blocks, silu_blocks
from kernels.launch import launch_options
from kernels.lora.batch import LoraWeights, TilePlan
from kernels.lora.tile import tile_tokens


@triton.jit(do_not_specialize=["num_tokens", "capacity"])
def expand_silu_mul_kernel(
    # read: [T, 2·I], shrunk tokens [tiles, 2, BT, max_rows], rank rows
    gate_up,
    h,
    b,
    # read: the plan
    order,
    slots,
    entries,
    num_pages,
    # written: [T, I] contiguous
    y,
    # sizes
    num_tokens,
    capacity,
    max_rows,
    # strides
    stride_gate_up,
    stride_b_page,
    stride_b_row,
    # meta
    I: tl.constexpr,  # noqa: E741
    PR: tl.constexpr,
    BT: tl.constexpr,
    BN: tl.constexpr,
    BR: tl.constexpr,
    UPCAST: tl.constexpr,
    PDL: tl.constexpr,
):
    i_tile = tl.program_id(0)
    # The plan and B were complete before the kernel before this one began (kernels/lora does so).
    num_rows = tl.load(num_pages + i_tile) * PR
    token, m_t, _ = tile_tokens(order, slots, i_tile, num_tokens, BT)
    i_n = tl.program_id(1) * BN + tl.arange(0, BN)
    m_n = i_n < I
    b_f0, b_f1 = rows_at(
        0,
        b,
        entries,
        i_tile,
        i_n,
        I + i_n,
        m_n,
        num_rows,
        capacity,
        stride_b_page,
        stride_b_row,
        PR,
        FIRST,
        True,
    )
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    m = m_t[:, None] & m_n[None, :]
    p_gate = gate_up + (token * stride_gate_up)[:, None] + i_n[None, :]
    b_gate = tl.load(p_gate, mask=m, other=0.0)
    b_up = tl.load(p_gate + I, mask=m, other=0.0)
    d_gate, d_up = delta(
        b_f0,
        b_f1,
        h,
        b,
        entries,
        i_tile,
        0,
        1,
        i_n,
        I + i_n,
        m_n,
        num_rows,
        capacity,
        max_rows,
        stride_b_page,
        stride_b_row,
        2,
        PR,
        BT,
        BN,
        BR,
        True,
        False,
        UPCAST,
    )
    b_gate = b_gate.to(tl.float32) + d_gate
    b_y = b_gate / (1.0 + tl.exp(-b_gate)) * (b_up.to(tl.float32) + d_up)
    p_y = y + (token * I)[:, None] + i_n[None, :]
    tl.store(p_y, b_y.to(y.dtype.element_ty), mask=m)


def expand_silu_mul(
    gate_up: torch.Tensor,
    h: torch.Tensor,
    weights: LoraWeights,
    plan: TilePlan,
    blocks: Blocks | None = None,
) -> torch.Tensor:
    """gate_up [T, 2·I], rows adjacent inside; h as list_rows leaves it. → a new [T, I]."""
    num_tokens, inner = gate_up.shape[0], gate_up.shape[1] // 2
    y = gate_up.new_empty((num_tokens, inner))
    chosen = blocks or silu_blocks(num_tokens, gate_up.element_size())
    if num_tokens:
        expand_silu_mul_kernel[(plan.num_pages.shape[0], triton.cdiv(inner, chosen.columns))](
            gate_up,
            h,
            weights.b,
            plan.order,
            plan.slots,
            plan.entries,
            plan.num_pages,
            y,
            num_tokens,
            plan.entries.shape[1],
            h.shape[3],
            gate_up.stride(0),
            *weights.b.stride()[:2],
            I=inner,
            PR=weights.b.shape[1],
            BT=plan.tokens_per_tile,
            BN=chosen.columns,
            BR=chosen.rows,
            UPCAST=not gate_up.is_cuda,
            num_warps=chosen.num_warps,
            num_stages=chosen.num_stages,
            **launch_options(gate_up.device),
        )
    return y
