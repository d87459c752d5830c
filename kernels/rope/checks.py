"""What rope_kv_write asks of its arguments, with an expand folded in or not."""

import torch

from kernels.contract import (
    FLOATS,
    expect,
    expect_contiguous,
    expect_device,
    expect_dtype,
    expect_shape,
)
from kernels.shares import check_shares


def check_rope_kv_write(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    places: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
) -> None:
    """Raises ValueError with expected and got."""
    expect(eps >= 0, "eps", "at least 0", eps)
    _check_qkv(qkv, k_cache, v_cache, places)
    _check_angles(qkv, cos, sin, k_cache.shape[3])
    _check_norms(k_cache, q_norm, k_norm)


def _check_qkv(
    qkv: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, places: torch.Tensor
) -> None:
    expect_dtype("qkv", qkv, *FLOATS)
    expect_shape("k_cache", k_cache, ("NB", "BS", "HKV", "D"))
    check_shares("qkv", qkv, k_cache.dtype)
    expect_shape("v_cache", v_cache, tuple(k_cache.shape))
    _check_width(qkv.shape[-1], *k_cache.shape[2:])
    expect_shape("places", places, (qkv.shape[-2],))
    expect_dtype("places", places, torch.int64)
    expect_device("places", places, qkv.device)
    expect_contiguous("places", places)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        expect_dtype(name, cache, k_cache.dtype)
        expect_device(name, cache, qkv.device)
        expect_contiguous(name, cache)


def _check_width(width: int, num_kv_heads: int, head_dim: int) -> None:
    num_heads = width // head_dim - 2 * num_kv_heads
    wanted = f"(HQ + 2·{num_kv_heads})·{head_dim}, HQ > 0"
    expect(num_heads > 0 and width % head_dim == 0, "qkv's width", wanted, width)


def _check_angles(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, head_dim: int) -> None:
    expect_shape("cos", cos, (qkv.shape[-2], "Dr/2"))
    expect_shape("sin", sin, tuple(cos.shape))
    for name, angles in (("cos", cos), ("sin", sin)):
        expect_dtype(name, angles, torch.float32)
        expect_device(name, angles, qkv.device)
        expect(angles.stride(1) == 1, name, "adjacent elements", f"strides {angles.stride()}")
    expect(0 < 2 * cos.shape[1] <= head_dim, "rotary size", f"2 to {head_dim}", 2 * cos.shape[1])


def _check_norms(
    cache: torch.Tensor, q_norm: torch.Tensor | None, k_norm: torch.Tensor | None
) -> None:
    expect((q_norm is None) == (k_norm is None), "norms", "both of q and k, or none", "one")
    for name, norm in (("q_norm", q_norm), ("k_norm", k_norm)):
        if norm is not None:
            expect_shape(name, norm, (cache.shape[3],))
            expect_dtype(name, norm, cache.dtype)
            expect_device(name, norm, cache.device)
            expect_contiguous(name, norm)
