"""rope_kv_write of (qkv + its delta) in one launch, read from the base projection's output."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.folded.table import rope_blocks
from kernels.lora.batch import LoraWeights, TilePlan
from kernels.lora.delta import FIRST, delta, rows_at
from kernels.lora.kernel import expand_meta
from kernels.lora.shrunk import Shrunk
from kernels.lora.table import ExpandBlocks
from kernels.lora.tile import tile_tokens
from kernels.shares import in_shares
from kernels.shares_kernel import load_shares


@triton.jit(do_not_specialize=["num_tokens", "num_places", "capacity"])
def expand_rope_kv_write_kernel(
    # read: [SHARES, T, (HQ + 2·HKV)·D], shrunk tokens (see lora/delta.py), rank rows
    qkv,
    h,
    b,
    # read: the plan
    order,
    slots,
    entries,
    num_pages,
    # read: angles [T, D/2], places, norms [D] or None
    cos,
    sin,
    places,
    q_norm,
    k_norm,
    # written: [T, HQ, D] contiguous, caches [places, HKV, D]
    q,
    k_cache,
    v_cache,
    # sizes
    num_tokens,
    num_places,
    capacity,
    max_rows,
    # strides
    stride_share,
    stride_qkv,
    stride_cos,
    stride_sin,
    stride_b_page,
    stride_b_row,
    # meta
    eps,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    ALIGN: tl.constexpr,
    NORM: tl.constexpr,
    PR: tl.constexpr,
    TILE: tl.constexpr,
    BT: tl.constexpr,
    BN: tl.constexpr,
    BR: tl.constexpr,
    SHARES: tl.constexpr,
    UPCAST: tl.constexpr,
    PDL: tl.constexpr,
):
    HALF: tl.constexpr = D // 2
    PARTS: tl.constexpr = (HALF + BN - 1) // BN
    i_tile = tl.program_id(0)
    i_head = tl.program_id(1) // PARTS
    i_half = tl.program_id(1) % PARTS * BN + tl.arange(0, BN)
    m_half = i_half < HALF
    i_n = i_head * D + i_half
    # The plan and B were complete before the kernel before this one began (kernels/lora does so).
    num_rows = tl.load(num_pages + i_tile) * PR
    token, m_t, slot = tile_tokens(order, slots, i_tile, num_tokens, TILE, BT)
    b_f0, b_f1, f_owner, f_row = rows_at(
        0,
        b,
        entries,
        i_tile,
        i_n,
        HALF + i_n,
        m_half,
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
    i_slice = (i_head >= HQ).to(tl.int32) + (i_head >= HQ + HKV).to(tl.int32)
    place = tl.load(places + token, mask=m_t, other=-1)
    m = m_t[:, None] & m_half[None, :]
    p_low = qkv + (token * stride_qkv)[:, None] + i_n[None, :]
    b_low = load_shares(p_low, stride_share, m, SHARES)
    b_high = load_shares(p_low + HALF, stride_share, m, SHARES)
    b_cos = tl.load(cos + (token * stride_cos)[:, None] + i_half[None, :], mask=m, other=0.0)
    b_sin = tl.load(sin + (token * stride_sin)[:, None] + i_half[None, :], mask=m, other=0.0)
    d_low, d_high = delta(
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
        i_slice,
        i_slice,
        i_n,
        HALF + i_n,
        m_half,
        num_rows,
        capacity,
        max_rows,
        stride_b_page,
        stride_b_row,
        3,
        PR,
        BT,
        BN,
        BR,
        True,
        True,
        True,
        q.dtype.element_ty,
        UPCAST,
    )
    b_low += d_low
    b_high += d_high
    if i_slice < 2:
        if NORM:
            p_norm = q_norm
            if i_slice == 1:
                p_norm = k_norm
            b_low, b_high = _normed(b_low, b_high, p_norm, i_half, m_half, eps, q, D)
        b_turned = b_low * b_cos - b_high * b_sin
        b_high = b_high * b_cos + b_low * b_sin
        b_low = b_turned

    # A token's row of what this head belongs to: q, or its place in one of the caches.
    p_out = q
    if i_slice == 1:
        p_out = k_cache
    if i_slice == 2:
        p_out = v_cache
    i_first = i_head - HQ - (i_slice - 1) * HKV
    o_out = tl.where(i_slice == 0, token * HQ + i_head, place * HKV + i_first) * D
    m_out = (i_slice == 0) | (place >= 0) & (place < num_places)
    m = m & m_out[:, None]
    # Rows of whole heads: told to the compiler, so that stores are wide.
    p_out += tl.multiple_of(o_out, ALIGN)[:, None] + i_half[None, :]
    tl.store(p_out, b_low.to(q.dtype.element_ty), mask=m)
    tl.store(p_out + HALF, b_high.to(q.dtype.element_ty), mask=m)


@triton.jit
def _normed(b_low, b_high, p_norm, i_half, m_half, eps, like, D: tl.constexpr):
    """rms_norm of whole heads, rounded to the dtype of like as kernels/norm does it."""
    b_low = b_low.to(like.dtype.element_ty).to(tl.float32)
    b_high = b_high.to(like.dtype.element_ty).to(tl.float32)
    b_scale = tl.rsqrt(tl.sum(b_low * b_low + b_high * b_high, axis=1) / D + eps)[:, None]
    b_low = (b_low * b_scale).to(like.dtype.element_ty).to(tl.float32)
    b_high = (b_high * b_scale).to(like.dtype.element_ty).to(tl.float32)
    b_low *= tl.load(p_norm + i_half, mask=m_half, other=0.0).to(tl.float32)[None, :]
    b_high *= tl.load(p_norm + D // 2 + i_half, mask=m_half, other=0.0).to(tl.float32)[None, :]
    return b_low, b_high


def expand_rope_kv_write(
    qkv: torch.Tensor,
    h: Shrunk,
    weights: LoraWeights,
    plan: TilePlan,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    places: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    blocks: ExpandBlocks | None = None,
) -> torch.Tensor:
    """As kernels/rope's launch. → a new q [T, HQ, D]."""
    num_blocks, block_size, num_kv_heads, head_dim = k_cache.shape
    qkv, rows = in_shares(qkv), h.rows
    num_shares, num_tokens, width = qkv.shape
    num_heads = width // head_dim - 2 * num_kv_heads
    q = k_cache.new_empty((num_tokens, num_heads, head_dim))
    if not num_tokens:
        return q
    chosen = blocks or rope_blocks(num_tokens, q.element_size())
    columns = _columns(chosen, head_dim, q_norm is not None)
    parts = triton.cdiv(head_dim // 2, columns)
    grid = (plan.sizes.num_tiles, (num_heads + 2 * num_kv_heads) * parts)
    read = (qkv, rows, weights.b, *plan.tensors, cos, sin, places, q_norm, k_norm)
    sizes = (num_tokens, num_blocks * block_size, plan.sizes.capacity, rows.shape[3])
    strides = (*qkv.stride()[:2], cos.stride(0), sin.stride(0), *weights.b.stride()[:2])
    # ALIGN: the largest power of two that divides a head.
    meta = {"HQ": num_heads, "HKV": num_kv_heads, "D": head_dim, "ALIGN": head_dim & -head_dim}
    meta |= {"NORM": q_norm is not None, "SHARES": num_shares}
    meta |= expand_meta(qkv, weights, plan, columns, chosen)
    expand_rope_kv_write_kernel[grid](*read, q, k_cache, v_cache, *sizes, *strides, eps, **meta)
    return q


def _columns(blocks: ExpandBlocks, head_dim: int, is_normed: bool) -> int:
    """Of each half of a head in a program; a norm needs the whole head."""
    whole: int = max(16, triton.next_power_of_2(head_dim // 2))
    return whole if is_normed else min(blocks.columns, whole)
