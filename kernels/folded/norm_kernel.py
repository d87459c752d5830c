"""residual += x + delta and its norm, from the base projection's output, in two launches.

A row is spread over many programs, so its mean square needs two steps: each program leaves its
share of the squares in memory, and the second launch adds them in fixed order. (One launch whose
programs wait for each other, measured on an H200: 0.5 to 1 µs slower than the second launch.)
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.folded.table import norm_blocks
from kernels.launch import launch_options
from kernels.lora.batch import LoraWeights, TilePlan
from kernels.lora.delta import FIRST, delta, rows_at
from kernels.lora.kernel import expand_meta
from kernels.lora.shrunk import Shrunk
from kernels.lora.table import ExpandBlocks
from kernels.lora.tile import tile_tokens
from kernels.shares import in_shares
from kernels.shares_kernel import load_shares

NORM_COLUMNS, NORM_WARPS = 1024, 4


@triton.jit(do_not_specialize=["num_tokens", "capacity"])
def expand_add_norm_kernel(
    # read: [SHARES, T, H], shrunk tokens (see lora/delta.py), rank rows
    x,
    h,
    b,
    # read: the plan
    order,
    slots,
    entries,
    num_pages,
    # read and written: [T, H]
    residual,
    # written: [T, blocks] fp32
    squares,
    # sizes
    num_tokens,
    capacity,
    max_rows,
    # strides
    stride_share,
    stride_x,
    stride_residual,
    stride_b_page,
    stride_b_row,
    # meta
    H: tl.constexpr,
    PR: tl.constexpr,
    TILE: tl.constexpr,
    BT: tl.constexpr,
    BN: tl.constexpr,
    BR: tl.constexpr,
    SHARES: tl.constexpr,
    UPCAST: tl.constexpr,
    PDL: tl.constexpr,
):
    i_tile = tl.program_id(0)
    i_block = tl.program_id(1)
    i_n = i_block * BN + tl.arange(0, BN)
    m_n = i_n < H
    # The plan and B were complete before the kernel before this one began (kernels/lora does so).
    num_rows = tl.load(num_pages + i_tile) * PR
    token, m_t, slot = tile_tokens(order, slots, i_tile, num_tokens, TILE, BT)
    b_f0, b_f1, f_owner, f_row = rows_at(
        0,
        b,
        entries,
        i_tile,
        i_n,
        i_n,
        m_n,
        num_rows,
        capacity,
        stride_b_page,
        stride_b_row,
        PR,
        FIRST,
        False,
    )
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    m = m_t[:, None] & m_n[None, :]
    p_residual = residual + (token * stride_residual)[:, None] + i_n[None, :]
    b_x = load_shares(x + (token * stride_x)[:, None] + i_n[None, :], stride_share, m, SHARES)
    b_residual = tl.load(p_residual, mask=m, other=0.0)
    b_delta, _ = delta(
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
        0,
        i_n,
        i_n,
        m_n,
        num_rows,
        capacity,
        max_rows,
        stride_b_page,
        stride_b_row,
        1,
        PR,
        BT,
        BN,
        BR,
        False,
        True,
        True,
        residual.dtype.element_ty,
        UPCAST,
    )
    b_sum = b_residual.to(tl.float32) + (b_x + b_delta)
    # What is normed is the sum as it is kept.
    b_sum = b_sum.to(residual.dtype.element_ty)
    tl.store(p_residual, b_sum, mask=m)
    b_sum = b_sum.to(tl.float32)
    BLOCKS: tl.constexpr = (H + BN - 1) // BN
    tl.store(squares + token * BLOCKS + i_block, tl.sum(b_sum * b_sum, axis=1), mask=m_t)


@triton.jit
def norm_of_squares_kernel(
    # read
    residual,
    weight,
    squares,
    # written
    y,
    # strides
    stride_residual,
    # meta
    eps,
    H: tl.constexpr,
    BH: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK_SQUARES: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    PARTS: tl.constexpr = (H + BH - 1) // BH
    i_token = (tl.program_id(0) // PARTS).to(tl.int64)
    i_h = tl.program_id(0) % PARTS * BH + tl.arange(0, BH)
    m_h = i_h < H
    i_block = tl.arange(0, BLOCK_SQUARES)
    b_squares = tl.load(squares + i_token * BLOCKS + i_block, mask=i_block < BLOCKS, other=0.0)
    b_sum = tl.load(residual + i_token * stride_residual + i_h, mask=m_h, other=0.0)
    b_w = tl.load(weight + i_h, mask=m_h, other=0.0).to(tl.float32)
    b_scale = tl.rsqrt(tl.sum(b_squares, axis=0) / H + eps)
    b_normed = (b_sum.to(tl.float32) * b_scale).to(y.dtype.element_ty).to(tl.float32)
    tl.store(y + i_token * H + i_h, (b_normed * b_w).to(y.dtype.element_ty), mask=m_h)


def expand_add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    h: Shrunk,
    weights: LoraWeights,
    plan: TilePlan,
    weight: torch.Tensor,
    eps: float,
    blocks: ExpandBlocks | None = None,
) -> torch.Tensor:
    """residual [T, H], x so or [P, T, H], rows adjacent inside. In place and new."""
    if not residual.shape[0]:
        return torch.empty_like(residual)
    squares = _add(in_shares(x), residual, h, weights, plan, blocks)
    return _norm(residual, weight, squares, eps)


def _add(
    x: torch.Tensor,
    residual: torch.Tensor,
    h: Shrunk,
    weights: LoraWeights,
    plan: TilePlan,
    blocks: ExpandBlocks | None,
) -> torch.Tensor:
    """residual += x + h B. → [T, blocks] fp32: sums of squares."""
    rows, (num_tokens, hidden) = h.rows, residual.shape
    chosen = blocks or norm_blocks(num_tokens, residual.element_size())
    num_blocks = triton.cdiv(hidden, chosen.columns)
    squares = x.new_empty((num_tokens, num_blocks), dtype=torch.float32)
    read = (x, rows, weights.b, *plan.tensors)
    sizes = (num_tokens, plan.sizes.capacity, rows.shape[3])
    strides = (*x.stride()[:2], residual.stride(0), *weights.b.stride()[:2])
    meta = {"H": hidden, "SHARES": x.shape[0]}
    meta |= expand_meta(x, weights, plan, chosen.columns, chosen)
    grid = (plan.sizes.num_tiles, num_blocks)
    expand_add_norm_kernel[grid](*read, residual, squares, *sizes, *strides, **meta)
    return squares


def _norm(
    residual: torch.Tensor, weight: torch.Tensor, squares: torch.Tensor, eps: float
) -> torch.Tensor:
    (num_tokens, hidden), num_blocks = residual.shape, squares.shape[1]
    y = residual.new_empty((num_tokens, hidden))
    norm_of_squares_kernel[(num_tokens * triton.cdiv(hidden, NORM_COLUMNS),)](
        residual,
        weight,
        squares,
        y,
        residual.stride(0),
        eps,
        H=hidden,
        BH=NORM_COLUMNS,
        BLOCKS=num_blocks,
        num_warps=NORM_WARPS,
        BLOCK_SQUARES=triton.next_power_of_2(num_blocks),
        **launch_options(residual.device),
    )
    return y
