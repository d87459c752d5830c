"""Rotary position embedding of queries and keys, and the write of keys and values."""

import torch

from kernels.rope import reference
from kernels.rope.checks import check_rope_kv_write


def rope_kv_write(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    places: torch.Tensor,
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """Semantics: q, k, v = split(qkv); cache[places[t]] = (turn(k[t]), v[t]); returns turn(q).

    turn: each pair (x[i], x[i + Dr/2]) of a head by its token's angle, NeoX order, the rest of a
    head unchanged; before it, with norms (both or none, [D] of the caches' dtype), rms_norm of each
    head. qkv [T, (HQ + 2·HKV)·D] fp32, fp16 or bf16, as the fused projection leaves it, rows of
    adjacent elements, or its shares [P, T, …] (see kernels.shares); HQ follows from its width.
    cos, sin [T, Dr/2] fp32: the rows of the model's table for this step's positions, selected once
    a step by the caller; Dr <= D. Caches [NB, BS, HKV, D] contiguous, of qkv's dtype (of any, with
    shares in fp32); places [T] int64 = block · BS + offset; a token whose place is negative or past
    the cache is not written. Returns a new q [T, HQ, D] of the caches' dtype.
    """
    arguments = (qkv, cos, sin, k_cache, v_cache, places, q_norm, k_norm, eps)
    check_rope_kv_write(*arguments)
    if not qkv.is_cuda:
        return reference.rope_kv_write(*arguments)
    from kernels.rope import kernel

    return kernel.rope_kv_write(*arguments)
