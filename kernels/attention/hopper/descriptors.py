"""What Hopper's copying units read, and in which pieces."""
# mypy: allow-untyped-calls

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


def descriptors(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    q_block: list[int],
    num_positions: int,
) -> tuple[TensorDescriptor, ...]:
    """Of q, k and v; caches [NB, BS, HKV, D] as rows of all heads, at most a KV block of them."""
    block_size, num_kv_heads, head_dim = k_cache.shape[1:]
    flat, deep = (gl.NVMMASharedLayout(128, 16, rank) for rank in (2, 3))
    piece = [min(block_size, num_positions), 64]
    rows = (cache.view(-1, num_kv_heads * head_dim) for cache in (k_cache, v_cache))
    return (
        TensorDescriptor(q, list(q.shape), list(q.stride()), q_block, deep),
        *(TensorDescriptor.from_tensor(x, piece, flat) for x in rows),
    )
