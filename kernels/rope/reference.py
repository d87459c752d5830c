"""Rotary embedding, NeoX style: the pair (x[i], x[i + Dr/2]) turns by the angle of its position."""

import torch

from kernels.attention.reference import kv_write
from kernels.norm.reference import rms_norm
from kernels.shares import sum_shares


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
    num_kv_heads, head_dim = k_cache.shape[2:]
    qkv = sum_shares(qkv, k_cache.dtype)
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    num_heads = heads.shape[1] - 2 * num_kv_heads
    qk, v = heads[:, :-num_kv_heads], heads[:, -num_kv_heads:]
    if q_norm is not None and k_norm is not None:
        q, k = qk[:, :num_heads], qk[:, num_heads:]
        qk = torch.cat((rms_norm(q, q_norm, eps), rms_norm(k, k_norm, eps)), dim=1)
    # Together: on the CPU an op of few tokens is its call.
    qk = rotate(qk, cos, sin)
    kv_write(qk[:, num_heads:], v, k_cache, v_cache, places)
    return qk[:, :num_heads].contiguous()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = cos.shape[-1]
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)  # [T, 1, Dr/2]
    low, high, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((low * cos - high * sin, high * cos + low * sin, rest), dim=-1)
