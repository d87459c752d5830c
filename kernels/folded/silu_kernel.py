"""silu(gate + its delta) · (up + its delta) in one launch, from the base projection's output."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.folded.table import silu_blocks
from kernels.lora.batch import LoraWeights, TilePlan
from kernels.lora.delta import FIRST, delta, rows_at
from kernels.lora.kernel import expand_meta
from kernels.lora.shrunk import Shrunk
from kernels.lora.table import ExpandBlocks
from kernels.lora.tile import tile_tokens
from kernels.shares import in_shares
from kernels.shares_kernel import load_shares


@triton.jit(do_not_specialize=["num_tokens", "capacity"])
def expand_silu_mul_kernel(
    # read: [SHARES, T, 2·I], shrunk tokens (see lora/delta.py), rank rows
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
    stride_share,
    stride_gate_up,
    stride_b_page,
    stride_b_row,
    # meta
    I: tl.constexpr,  # noqa: E741
    PR: tl.constexpr,
    TILE: tl.constexpr,
    BT: tl.constexpr,
    BN: tl.constexpr,
    BR: tl.constexpr,
    LISTED: tl.constexpr,
    SHARES: tl.constexpr,
    UPCAST: tl.constexpr,
    PDL: tl.constexpr,
):
    i_tile = tl.program_id(0)
    # The plan and B were complete before the kernel before this one began (kernels/lora does so).
    num_rows = tl.load(num_pages + i_tile) * PR
    token, m_t, slot = tile_tokens(order, slots, i_tile, num_tokens, TILE, BT)
    i_n = tl.program_id(1) * BN + tl.arange(0, BN)
    m_n = i_n < I
    b_f0, b_f1, f_owner, f_row = rows_at(
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
        gdc_wait()
        gdc_launch_dependents()
    m = m_t[:, None] & m_n[None, :]
    p_gate = gate_up + (token * stride_gate_up)[:, None] + i_n[None, :]
    b_gate = load_shares(p_gate, stride_share, m, SHARES)
    b_up = load_shares(p_gate + I, stride_share, m, SHARES)
    d_gate, d_up = delta(
        b_f0,
        b_f1,
        f_owner,
        f_row,
        h,
        b,
        entries,
        i_tile,
        token,
        slot,
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
        LISTED,
        y.dtype.element_ty,
        UPCAST,
    )
    b_gate += d_gate
    b_y = b_gate / (1.0 + tl.exp(-b_gate)) * (b_up + d_up)
    p_y = y + (token * I)[:, None] + i_n[None, :]
    tl.store(p_y, b_y.to(y.dtype.element_ty), mask=m)


def expand_silu_mul(
    gate_up: torch.Tensor,
    h: Shrunk,
    weights: LoraWeights,
    plan: TilePlan,
    dtype: torch.dtype,
    blocks: ExpandBlocks | None = None,
) -> torch.Tensor:
    """gate_up [T, 2·I] or [P, T, 2·I], rows adjacent inside. → a new [T, I] of dtype."""
    gate_up, rows = in_shares(gate_up), h.rows
    num_shares, num_tokens, width = gate_up.shape
    inner = width // 2
    y = gate_up.new_empty((num_tokens, inner), dtype=dtype)
    if not num_tokens:
        return y
    chosen = blocks or silu_blocks(num_tokens, y.element_size())
    read = (gate_up, rows, weights.b, *plan.tensors)
    sizes = (num_tokens, plan.sizes.capacity, rows.shape[3])
    strides = (*gate_up.stride()[:2], *weights.b.stride()[:2])
    meta = {"I": inner, "LISTED": h.listed is not None, "SHARES": num_shares}
    meta |= expand_meta(gate_up, weights, plan, chosen.columns, chosen)
    grid = (plan.sizes.num_tiles, triton.cdiv(inner, chosen.columns))
    expand_silu_mul_kernel[grid](*read, y, *sizes, *strides, **meta)
    return y
