"""Rotary embedding and the write of keys and values in Triton: one launch after the projection."""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from kernels.launch import launch_options
from kernels.shares import in_shares
from kernels.shares_kernel import load_shares

# Heads and warps of a program: narrow threads answer sooner, wide ones move more (H200: 52 µs
# against 62 at 8192 tokens of a Llama-3.1-8B, 1.78 against 1.92 at 64).
SMALL, LARGE = (8, 4), (16, 2)
MAX_SMALL_TOKENS = 512


@triton.jit
def rope_kv_write_kernel(
    # read: [SHARES, T, (HQ + 2·HKV)·D], angles [T, HALF], places, norms [D] or None
    qkv,
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
    num_places,
    # strides
    stride_share,
    stride_qkv,
    stride_cos,
    stride_sin,
    # meta: HALF = Dr/2, of REST = D - Dr elements nothing turns
    eps,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    NORM: tl.constexpr,
    HEADS: tl.constexpr,
    SHARES: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    # Blocks of heads are counted through q, k and v, so that none crosses a border.
    Q_BLOCKS: tl.constexpr = (HQ + HEADS - 1) // HEADS
    KV_BLOCKS: tl.constexpr = (HKV + HEADS - 1) // HEADS
    REST: tl.constexpr = D - 2 * HALF
    i_block = tl.program_id(0) % (Q_BLOCKS + 2 * KV_BLOCKS)
    i_token = (tl.program_id(0) // (Q_BLOCKS + 2 * KV_BLOCKS)).to(tl.int64)
    place = tl.load(places + i_token)
    if (i_block >= Q_BLOCKS) & ((place < 0) | (place >= num_places)):
        return

    p_row = qkv + i_token * stride_qkv
    p_out = q + i_token * (HQ * D)
    p_norm = q_norm
    num_heads = HQ
    first = i_block * HEADS
    if i_block >= Q_BLOCKS:
        p_row += HQ * D
        p_out = k_cache + place * (HKV * D)
        p_norm = k_norm
        num_heads = HKV
        first -= Q_BLOCKS * HEADS
    is_value = i_block >= Q_BLOCKS + KV_BLOCKS
    if is_value:
        p_row += HKV * D
        p_out = v_cache + place * (HKV * D)
        first -= KV_BLOCKS * HEADS

    i_head = first + tl.arange(0, HEADS)
    i_half = tl.arange(0, BLOCK_HALF)
    m_half = i_half < HALF
    m = (i_head < num_heads)[:, None] & m_half[None, :]
    o_low = (i_head * D)[:, None] + i_half[None, :]
    b_low = load_shares(p_row + o_low, stride_share, m, SHARES)
    b_high = load_shares(p_row + o_low + HALF, stride_share, m, SHARES)
    i_rest = tl.arange(0, BLOCK_REST)
    m_rest = i_rest < REST
    m_kept = (i_head < num_heads)[:, None] & m_rest[None, :]
    o_rest = (i_head * D + 2 * HALF)[:, None] + i_rest[None, :]
    b_rest = tl.zeros((HEADS, BLOCK_REST), dtype=tl.float32)
    if REST > 0:
        b_rest = load_shares(p_row + o_rest, stride_share, m_kept, SHARES)

    if not is_value:
        if NORM:
            b_square = tl.sum(b_low * b_low + b_high * b_high, axis=1)
            b_square += tl.sum(b_rest * b_rest, axis=1)
            b_scale = tl.rsqrt(b_square / D + eps)[:, None]
            b_low = _weighted(b_low, b_scale, p_norm + i_half, m_half, q)
            b_high = _weighted(b_high, b_scale, p_norm + HALF + i_half, m_half, q)
            b_rest = _weighted(b_rest, b_scale, p_norm + 2 * HALF + i_rest, m_rest, q)
        b_cos = tl.load(cos + i_token * stride_cos + i_half, mask=m_half, other=0.0)[None, :]
        b_sin = tl.load(sin + i_token * stride_sin + i_half, mask=m_half, other=0.0)[None, :]
        b_turned = b_low * b_cos - b_high * b_sin
        b_high = b_high * b_cos + b_low * b_sin
        b_low = b_turned

    tl.store(p_out + o_low, b_low.to(q.dtype.element_ty), mask=m)
    tl.store(p_out + o_low + HALF, b_high.to(q.dtype.element_ty), mask=m)
    if REST > 0:
        tl.store(p_out + o_rest, b_rest.to(q.dtype.element_ty), mask=m_kept)


@triton.jit
def _weighted(b_x, b_scale, p_weight, m_weight, like):
    """A head's norm, rounded before and after the weight as kernels/norm does it."""
    b_weight = tl.load(p_weight, mask=m_weight, other=0.0).to(tl.float32)
    b_normed = (b_x * b_scale).to(like.dtype.element_ty).to(tl.float32)
    return (b_normed * b_weight[None, :]).to(like.dtype.element_ty).to(tl.float32)


def rope_kv_write(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    places: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """qkv [T, N] or [P, T, N]; rows of qkv, cos and sin are adjacent inside; caches contiguous.

    → a new q [T, HQ, D].
    """
    num_blocks, block_size, num_kv_heads, head_dim = k_cache.shape
    num_tokens, half = cos.shape
    qkv = in_shares(qkv)
    num_shares, _, width = qkv.shape
    num_heads = width // head_dim - 2 * num_kv_heads
    q = k_cache.new_empty((num_tokens, num_heads, head_dim))
    if not num_tokens:
        return q
    heads, num_warps = SMALL if num_tokens <= MAX_SMALL_TOKENS else LARGE
    programs = triton.cdiv(num_heads, heads) + 2 * triton.cdiv(num_kv_heads, heads)
    read, written = (qkv, cos, sin, places, q_norm, k_norm), (q, k_cache, v_cache)
    strides = (*qkv.stride()[:2], cos.stride(0), sin.stride(0))
    meta = _head_meta(num_heads, num_kv_heads, head_dim, half)
    meta |= {"NORM": q_norm is not None, "SHARES": num_shares}
    meta |= {"HEADS": heads, "num_warps": num_warps, **launch_options(qkv.device)}
    grid = (num_tokens * programs,)
    rope_kv_write_kernel[grid](*read, *written, num_blocks * block_size, *strides, eps, **meta)
    return q


def _head_meta(num_heads: int, num_kv_heads: int, head_dim: int, half: int) -> dict[str, int]:
    return {
        "HQ": num_heads,
        "HKV": num_kv_heads,
        "D": head_dim,
        "HALF": half,
        "BLOCK_HALF": triton.next_power_of_2(half),
        "BLOCK_REST": triton.next_power_of_2(max(head_dim - 2 * half, 1)),
    }
