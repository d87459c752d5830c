"""The norm in Triton: a program holds whole rows, so that each is read once."""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from kernels.launch import launch_options
from kernels.shares import in_shares
from kernels.shares_kernel import load_shares

# Elements of a thread, in one tensor: two loads of 16 bytes in 16-bit types.
ELEMENTS_PER_THREAD = 16
# Short rows (heads) share a program.
MIN_ELEMENTS = 1024
MAX_WARPS = 16


@triton.jit
def rms_norm_kernel(
    # read: the rows, in shares
    x,
    weight,
    # read and written, if ADD
    residual,
    # written: [rows, H] contiguous
    y,
    # sizes
    num_rows,
    # strides: a row is head i_row % HEADS of token i_row // HEADS
    stride_x_share,
    stride_x_token,
    stride_x_head,
    stride_residual,
    # meta
    eps,
    H: tl.constexpr,
    HEADS: tl.constexpr,
    ADD: tl.constexpr,
    SHARES: tl.constexpr,
    BR: tl.constexpr,
    BH: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    i_row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    i_h = tl.arange(0, BH)
    m_h = i_h < H
    m = (i_row < num_rows)[:, None] & m_h[None, :]
    o_x = i_row // HEADS * stride_x_token + i_row % HEADS * stride_x_head
    b_sum = load_shares(x + o_x[:, None] + i_h[None, :], stride_x_share, m, SHARES)
    b_w = tl.load(weight + i_h, mask=m_h, other=0.0).to(tl.float32)
    if ADD:
        p_residual = residual + (i_row * stride_residual)[:, None] + i_h[None, :]
        b_sum += tl.load(p_residual, mask=m, other=0.0).to(tl.float32)
        # What is normed is the sum as it is kept.
        b_kept = b_sum.to(y.dtype.element_ty)
        tl.store(p_residual, b_kept, mask=m)
        b_sum = b_kept.to(tl.float32)
    b_scale = tl.rsqrt(tl.sum(b_sum * b_sum, axis=1) / H + eps)
    b_normed = (b_sum * b_scale[:, None]).to(y.dtype.element_ty).to(tl.float32)
    b_y = (b_normed * b_w[None, :]).to(y.dtype.element_ty)
    tl.store(y + (i_row * H)[:, None] + i_h[None, :], b_y, mask=m)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., H] of up to three dimensions, its last one adjacent. A new contiguous tensor."""
    y = x.new_empty(x.shape)
    heads = x.shape[1] if x.dim() == 3 else 1
    stride_head = x.stride(1) if x.dim() == 3 else 0
    stride_token = x.stride(0) if x.dim() > 1 else 0
    _launch(x, (0, stride_token, stride_head), weight, None, y, eps, heads=heads)
    return y


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """x [T, H] or [P, T, H], rows adjacent inside. residual += x, in place; returns its norm."""
    y, x = residual.new_empty(residual.shape), in_shares(x)
    _launch(x, (x.stride(0), x.stride(1), 0), weight, residual, y, eps, num_shares=x.shape[0])
    return y


def _launch(
    x: torch.Tensor,
    strides: tuple[int, int, int],
    weight: torch.Tensor,
    residual: torch.Tensor | None,
    y: torch.Tensor,
    eps: float,
    *,
    heads: int = 1,
    num_shares: int = 1,
) -> None:
    num_rows = y.numel() // max(y.shape[-1], 1)
    if not num_rows:
        return
    meta = {"HEADS": heads, "ADD": residual is not None, "SHARES": num_shares}
    meta |= _row_meta(y.shape[-1])
    grid = (triton.cdiv(num_rows, meta["BR"]),)
    stride_residual = residual.stride(0) if residual is not None else 0
    numbers = (num_rows, *strides, stride_residual, eps)
    rms_norm_kernel[grid](x, weight, residual, y, *numbers, **meta, **launch_options(y.device))


def _row_meta(hidden: int) -> dict[str, int]:
    block = triton.next_power_of_2(hidden)
    rows_per_program = max(1, MIN_ELEMENTS // block)
    threads = rows_per_program * block // ELEMENTS_PER_THREAD
    num_warps = max(1, min(MAX_WARPS, threads // 32))
    return {"H": hidden, "BR": rows_per_program, "BH": block, "num_warps": num_warps}
