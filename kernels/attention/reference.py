"""Causal attention over paged keys and values: softmax(q Kᵀ · scale) V, sequence by sequence.

Decodes go together in one call, their blocks gathered side by side and masked by length; prefill
chunks go one sequence at a time, each query seeing the prefix and the chunk up to itself.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F


def attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    num_decodes: int,
    max_decode_context: int,
    prefills: Sequence[tuple[int, int]],
) -> torch.Tensor:
    """The whole step, [T, HQ, D]. query_start is what the host's prefills say already."""
    parts = []
    if num_decodes:
        tables = block_tables[:num_decodes, : _num_blocks(max_decode_context, k_cache)]
        lens = context_lens[:num_decodes]
        parts.append(decode(q[:num_decodes], k_cache, v_cache, tables, lens, scale))
    start = num_decodes
    for sequence, (num_queries, context_len) in enumerate(prefills, num_decodes):
        blocks = block_tables[sequence, : _num_blocks(context_len, k_cache)]
        queries = q[start : start + num_queries]
        parts.append(prefill(queries, k_cache, v_cache, blocks, context_len, scale))
        start += num_queries
    if not parts:
        return torch.empty_like(q)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def attention_of_any(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    decodes: tuple[torch.Tensor, torch.Tensor],
    chunks: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    scale: float,
) -> torch.Tensor:
    """The whole step, [T, HQ, D]; zeros where nothing is."""
    (tables, lens), (chunk_tables, starts, chunk_lens) = decodes, chunks
    lengths = [length for length in lens.tolist() if length > 0]
    bounds = starts.tolist()
    prefills = [
        (end - start, context)
        for start, end, context in zip(bounds, bounds[1:], chunk_lens.tolist(), strict=False)
        if end > start
    ]
    num, num_rows = len(lengths), len(lengths) + sum(queries for queries, _ in prefills)
    all_tables = torch.cat((tables[:num], chunk_tables[: len(prefills)]))
    all_lens = torch.cat((lens[:num], chunk_lens[: len(prefills)]))
    longest = max(lengths, default=0)
    out = torch.zeros_like(q)
    step = (q[:num_rows], k_cache, v_cache, all_tables, starts, all_lens, scale)
    out[:num_rows] = attention(*step, num, longest, prefills)
    return out


def _num_blocks(num_positions: int, cache: torch.Tensor) -> int:
    return -(-max(num_positions, 1) // cache.shape[1])


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
    k, v = gather(k_cache, block_tables), gather(v_cache, block_tables)  # [B, C, HKV, D]
    # A padded sequence (length 0) sees position 0, so that its row is finite; nobody reads it.
    lengths = context_lens.clamp(min=1)
    visible = torch.arange(k.shape[1], device=q.device) < lengths[:, None]  # [B, C]
    clear(k, visible)
    clear(v, visible)
    # The query heads of one key head are rows of one matmul: no copy of K and V per query head.
    grouped = q.reshape(num_seqs, num_kv_heads, num_heads // num_kv_heads, head_dim)
    mask = visible[:, None, None]
    out = F.scaled_dot_product_attention(
        grouped, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, scale=scale
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
    # Cut to the sequence's own positions: what another one left behind them is not even multiplied.
    k = gather(k_cache, blocks[None])[:, :context_len].transpose(1, 2)
    v = gather(v_cache, blocks[None])[:, :context_len].transpose(1, 2)
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
    """cache [NB, BS, HKV, D], blocks [B, n] → a copy [B, n·BS, HKV, D]."""
    num_seqs, num_blocks = blocks.shape
    # Entries past a sequence's end may be -1: they read some block, which is cleared.
    rows = cache.index_select(0, blocks.reshape(-1).clamp(min=0))
    return rows.view(num_seqs, num_blocks * cache.shape[1], *cache.shape[2:])


def clear(rows: torch.Tensor, visible: torch.Tensor) -> None:
    """Zero gathered rows [B, C, HKV, D] past each sequence: a NaN left there passes any mask."""
    if rows.is_cuda:
        rows.masked_fill_(~visible[:, :, None, None], 0.0)
    else:
        # Most rows are visible: touching the others alone is cheaper here.
        rows.flatten(0, 1).index_fill_(0, (~visible).flatten().nonzero().squeeze(1), 0.0)


def kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    places: torch.Tensor,
) -> None:
    kept = (places >= 0) & (places < k_cache.shape[0] * k_cache.shape[1])
    if not bool(kept.all()):
        kept = kept.nonzero().squeeze(1)
        k, v, places = k[kept], v[kept], places[kept]
    k_cache.view(-1, *k_cache.shape[2:]).index_copy_(0, places, k)
    v_cache.view(-1, *v_cache.shape[2:]).index_copy_(0, places, v)
