"""y = x Wᵀ for few tokens in Triton: W is read once, at the memory's rate; K may be shared out."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.launch import launch_options
from kernels.linear.table import Blocks


@triton.jit(do_not_specialize=["num_tokens"])
def linear_shares_kernel(
    # read: tokens [T, H], weight [N, H], bias [N] or None
    x,
    w,
    bias,
    # written: shares [SPLIT, T, N]
    y,
    # sizes
    num_tokens,
    H,
    N,
    # strides
    stride_x,
    stride_w,
    # meta
    BT: tl.constexpr,
    BN: tl.constexpr,
    BH: tl.constexpr,
    SPLIT: tl.constexpr,
    WHOLE: tl.constexpr,
    UPCAST: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    i_split = tl.program_id(1)
    i_n = tl.program_id(0) * BN + tl.arange(0, BN)
    i_t = tl.arange(0, BT)
    m_t, m_n = i_t < num_tokens, i_n < N
    num_steps = tl.cdiv(H, BH)
    steps = tl.cdiv(num_steps, SPLIT)
    p_x = x + (i_t * stride_x)[:, None]
    p_w = w + (i_n.to(tl.int64) * stride_w)[:, None]
    # Columns on the tensor cores' first side, which is 64 long: tokens may be few.
    acc = tl.zeros((BN, BT), dtype=tl.float32)
    if bias is not None:
        m_bias = m_n & (i_split == 0)
        acc += tl.load(bias + i_n, mask=m_bias, other=0.0).to(tl.float32)[:, None]
    for step in range(i_split * steps, min((i_split + 1) * steps, num_steps)):
        i_h = (step * BH + tl.arange(0, BH))[None, :]
        if WHOLE:
            b_w = tl.load(p_w + i_h)
            b_x = tl.load(p_x + i_h, mask=m_t[:, None], other=0.0)
        else:
            b_w = tl.load(p_w + i_h, mask=m_n[:, None] & (i_h < H), other=0.0)
            b_x = tl.load(p_x + i_h, mask=m_t[:, None] & (i_h < H), other=0.0)
        if UPCAST:
            b_w = b_w.to(tl.float32)
            b_x = b_x.to(tl.float32)
        acc = tl.dot(b_w, tl.trans(b_x), acc, input_precision="ieee")
    p_y = y + ((tl.cast(i_split, tl.int64) * num_tokens + i_t) * N)[:, None] + i_n[None, :]
    tl.store(p_y, tl.trans(acc).to(y.dtype.element_ty), mask=m_t[:, None] & m_n[None, :])


def linear_shares(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    blocks: Blocks,
) -> torch.Tensor:
    """x [T, H], T <= 128; weight [N, H], bias [N] → shares [P, T, N], fp32 if several, else x's."""
    (num_tokens, hidden), width = x.shape, weight.shape[0]
    dtype = x.dtype if blocks.split == 1 else torch.float32
    y = x.new_empty((blocks.split, num_tokens, width), dtype=dtype)
    if not num_tokens:
        return y
    meta = {
        "BT": max(16, triton.next_power_of_2(num_tokens)),
        "BN": blocks.columns,
        "BH": blocks.hidden,
        "SPLIT": blocks.split,
        "WHOLE": not hidden % blocks.hidden and not width % blocks.columns,
        "UPCAST": not x.is_cuda,
        "num_warps": blocks.num_warps,
        "num_stages": blocks.num_stages,
        **launch_options(x.device),
    }
    sizes, strides = (num_tokens, hidden, width), (x.stride(0), weight.stride(0))
    grid = (triton.cdiv(width, blocks.columns), blocks.split)
    linear_shares_kernel[grid](x, weight, bias, y, *sizes, *strides, **meta)
    return y
