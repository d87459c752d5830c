"""Paged attention for a step of decodes and prefill chunks; the write of new keys and values."""

from collections.abc import Sequence

import torch

from kernels.attention import reference
from kernels.attention.chunks import MAX_CHUNKS
from kernels.contract import (
    FLOATS,
    expect,
    expect_contiguous,
    expect_device,
    expect_dtype,
    expect_shape,
)

# What the kernels' tiles hold.
MAX_HEAD_DIM = 256


def attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    *,
    num_decodes: int,
    max_decode_context: int,
    prefills: Sequence[tuple[int, int]] = (),
) -> torch.Tensor:
    """Semantics: out[t] = Σ_c softmax(q[t] · K[c] · scale) V[c] over its sequence's c <= t.

    q [T, HQ, D]; k_cache, v_cache [NB, BS, HKV, D] of q's dtype, already holding this step's keys;
    all but q contiguous; D at most 256.
    block_tables [B, max_blocks] int32; query_start [B+1] int32: where each sequence's queries
    begin in q; context_lens [B] int32: each sequence's positions with this step's, 0 for a padded
    decode. Host copies, so that nothing waits for the device: the first num_decodes sequences have
    one query each and at most max_decode_context positions; prefills are (queries, positions) of
    each sequence after them. Were they not what the device has, rows of this step would be wrong,
    and nothing else. Returns a new [T, HQ, D].
    """
    _check_heads(q, k_cache, v_cache)
    _check_tables(q.device, block_tables, context_lens)
    _check_starts(q.device, query_start, block_tables.shape[0])
    _check_hints(q, k_cache, block_tables, num_decodes, max_decode_context, prefills)
    step = (q, k_cache, v_cache, block_tables, query_start, context_lens, scale)
    if not q.is_cuda:
        return reference.attention(*step, num_decodes, max_decode_context, prefills)
    from kernels.attention import kernel

    return kernel.attention(*step, num_decodes, max_decode_context, prefills)


def attention_of_any(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    decodes: tuple[torch.Tensor, torch.Tensor],
    chunks: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    scale: float,
) -> torch.Tensor:
    """attention() of a step of which the host knows bounds alone: a captured graph serves any.

    decodes: (block_tables [R, max_blocks], context_lens [R]), sequence i's query in row i of q; the
    first that is not there, and all behind it, have length 0. chunks: (block_tables
    [P, max_blocks], query_start [P+1], context_lens [P]), P at most MAX_CHUNKS; likewise without
    queries. All int32 and contiguous, q and the caches as attention()'s. Returns a new [T, HQ, D];
    rows that no sequence has hold anything.
    """
    _check_heads(q, k_cache, v_cache)
    (tables, lens), (chunk_tables, starts, chunk_lens) = decodes, chunks
    num_rows = tables.shape[0]
    expect(num_rows <= len(q), "decodes", f"at most {len(q)}", num_rows)
    expect(1 <= len(chunk_lens) <= MAX_CHUNKS, "chunks", f"1 to {MAX_CHUNKS}", len(chunk_lens))
    _check_tables(q.device, tables, lens)
    _check_tables(q.device, chunk_tables, chunk_lens)
    _check_starts(q.device, starts, len(chunk_lens))
    step = (q, k_cache, v_cache, decodes, chunks, scale)
    if not q.is_cuda:
        return reference.attention_of_any(*step)
    from kernels.attention import kernel

    return kernel.attention_of_any(*step)


def kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    places: torch.Tensor,
) -> None:
    """Semantics: cache[places[t] // BS, places[t] % BS] = k[t], likewise v, in place.

    k, v [T, HKV, D]; caches [NB, BS, HKV, D] contiguous, of k's dtype; places [T] int64 =
    block · BS + offset, negative for a padded token, which is not written.
    """
    expect_dtype("k", k, *FLOATS)
    expect_shape("v", v, tuple(k.shape))
    expect_dtype("v", v, k.dtype)
    expect_shape("k_cache", k_cache, ("NB", "BS", *k.shape[1:]))
    expect_shape("v_cache", v_cache, tuple(k_cache.shape))
    expect_dtype("k_cache", k_cache, k.dtype)
    expect_dtype("v_cache", v_cache, k.dtype)
    expect_shape("places", places, (k.shape[0],))
    expect_dtype("places", places, torch.int64)
    named = {"k_cache": k_cache, "v_cache": v_cache, "places": places}
    for name, tensor in named.items():
        expect_contiguous(name, tensor)
    for name, tensor in (named | {"v": v}).items():
        expect_device(name, tensor, k.device)
    if not k.is_cuda:
        reference.kv_write(k, v, k_cache, v_cache, places)
        return
    from kernels.attention import kernel

    kernel.kv_write(_packed(k), _packed(v), k_cache, v_cache, places)


def _packed(x: torch.Tensor) -> torch.Tensor:
    """x [T, HKV, D] with a token's elements adjacent; a view of a fused projection already is."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def _check_heads(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    expect_dtype("q", q, *FLOATS)
    expect_shape("q", q, ("T", "HQ", "D"))
    expect_shape("k_cache", k_cache, ("NB", "BS", "HKV", q.shape[2]))
    expect_shape("v_cache", v_cache, tuple(k_cache.shape))
    num_heads, num_kv_heads = q.shape[1], k_cache.shape[2]
    is_multiple = num_kv_heads > 0 and num_heads % num_kv_heads == 0
    expect(is_multiple, "HQ", f"a multiple of HKV = {num_kv_heads}", num_heads)
    expect(q.shape[2] <= MAX_HEAD_DIM, "head dim", f"at most {MAX_HEAD_DIM}", q.shape[2])
    for name, tensor in (("k_cache", k_cache), ("v_cache", v_cache)):
        expect_dtype(name, tensor, q.dtype)
        expect_device(name, tensor, q.device)
        expect_contiguous(name, tensor)


def _check_tables(
    device: torch.device, block_tables: torch.Tensor, context_lens: torch.Tensor
) -> None:
    expect_shape("block_tables", block_tables, ("B", "max_blocks"))
    expect_shape("context_lens", context_lens, (block_tables.shape[0],))
    _check_ints("block_tables", block_tables, device)
    _check_ints("context_lens", context_lens, device)


def _check_starts(device: torch.device, query_start: torch.Tensor, num_seqs: int) -> None:
    expect_shape("query_start", query_start, (num_seqs + 1,))
    _check_ints("query_start", query_start, device)


def _check_ints(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    expect_dtype(name, tensor, torch.int32)
    expect_device(name, tensor, device)
    expect_contiguous(name, tensor)


def _check_hints(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_tables: torch.Tensor,
    num_decodes: int,
    max_decode_context: int,
    prefills: Sequence[tuple[int, int]],
) -> None:
    expect(num_decodes >= 0, "num_decodes", "at least 0", num_decodes)
    (num_seqs, max_blocks), told = block_tables.shape, num_decodes + len(prefills)
    expect(told == num_seqs, "sequences", num_seqs, told)
    num_queries = num_decodes + sum(queries for queries, _ in prefills)
    expect(num_queries == q.shape[0], "queries of all sequences", q.shape[0], num_queries)
    longest = max([max_decode_context] + [context for _, context in prefills])
    most = max_blocks * k_cache.shape[1]
    expect(longest <= most, "positions of a sequence", f"at most {most}", longest)
    for queries, context in prefills:
        expect(1 <= queries <= context, "queries of a prefill", f"1 to {context}", queries)
