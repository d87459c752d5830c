"""Causal attention over paged keys and values: softmax(q Kᵀ · scale) V, sequence by sequence.

Decodes go together in one call, their blocks gathered side by side and masked by length; prefill
chunks go one sequence at a time, each query seeing the prefix and the chunk up to itself.
"""

import torch
import torch.nn.functional as F


def decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """q [B, HQ, D], one query a sequence; block_tables [B, n] cut to the longest. → [B, HQ, D]."""
    num_seqs, num_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[2]
    k, v = gather(k_cache, block_tables), gather(v_cache, block_tables)  # [B, HKV, C, D]
    # The query heads of one key head are rows of one matmul: no copy of K and V per query head.
    grouped = q.reshape(num_seqs, num_kv_heads, num_heads // num_kv_heads, head_dim)
    # A padded sequence (length 0) sees position 0, so that its row is finite; nobody reads it.
    lengths = context_lens.clamp(min=1)
    visible = torch.arange(k.shape[2], device=q.device) < lengths[:, None]  # [B, C]
    out = F.scaled_dot_product_attention(
        grouped, k, v, attn_mask=visible[:, None, None], scale=scale
    )
    return out.reshape(num_seqs, num_heads, head_dim)


def prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    blocks: torch.Tensor,
    context_len: int,
    scale: float,
) -> torch.Tensor:
    """q [Q, HQ, D]: the last Q positions of one sequence, blocks [n] its blocks. → [Q, HQ, D]."""
    num_queries = q.shape[0]
    k = gather(k_cache, blocks[None])[:, :, :context_len]
    v = gather(v_cache, blocks[None])[:, :, :context_len]
    mask = None
    if num_queries != context_len:
        position = torch.arange(context_len, device=q.device)
        mask = position <= position[-num_queries:, None]  # [Q, C]
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k,
        v,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)


def gather(cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """cache [NB, BS, HKV, D], blocks [B, n] → [B, HKV, n·BS, D]."""
    num_seqs, num_blocks = blocks.shape
    rows = cache.index_select(0, blocks.reshape(-1))
    return rows.reshape(num_seqs, num_blocks * cache.shape[1], *cache.shape[2:]).transpose(1, 2)


def kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    places: torch.Tensor,
) -> None:
    if bool((places < 0).any()):
        kept = (places >= 0).nonzero().squeeze(1)
        k, v, places = k[kept], v[kept], places[kept]
    k_cache.view(-1, *k_cache.shape[2:]).index_copy_(0, places, k)
    v_cache.view(-1, *v_cache.shape[2:]).index_copy_(0, places, v)
