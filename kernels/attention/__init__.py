"""Paged attention for a step of decodes and prefill chunks; the write of new keys and values."""

from collections.abc import Sequence

import torch

from kernels.attention import reference
from kernels.contract import FLOATS, expect, expect_device, expect_dtype, expect_shape


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

    q [T, HQ, D]; k_cache, v_cache [NB, BS, HKV, D] of q's dtype, already holding this step's keys.
    block_tables [B, max_blocks] int32; query_start [B+1] int32: where each sequence's queries
    begin in q; context_lens [B] int32: each sequence's positions with this step's, 0 for a padded
    decode. Host copies, so that nothing waits for the device: the first num_decodes sequences have
    one query each and at most max_decode_context positions; prefills are (queries, positions) of
    each sequence after them. Were they not what the device has, rows of this step would be wrong,
    and nothing else. Returns a new [T, HQ, D].
    """
    _check(q, k_cache, v_cache, block_tables, query_start, context_lens)
    _check_hints(q, k_cache, block_tables, num_decodes, max_decode_context, prefills)
    step = (q, k_cache, v_cache, block_tables, query_start, context_lens, scale)
    if not q.is_cuda:
        return reference.attention(*step, num_decodes, max_decode_context, prefills)
    for name, tensor in (
        ("k_cache", k_cache),
        ("v_cache", v_cache),
        ("block_tables", block_tables),
    ):
        expect(tensor.is_contiguous(), name, "a contiguous tensor", f"strides {tensor.stride()}")
    from kernels.attention import kernel

    return kernel.attention(*step, num_decodes, max_decode_context, prefills)


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
    expect_shape("v", v, tuple(k.shape))
    expect_shape("k_cache", k_cache, ("NB", "BS", *k.shape[1:]))
    expect_shape("v_cache", v_cache, tuple(k_cache.shape))
    expect_dtype("k_cache", k_cache, k.dtype)
    expect_dtype("v_cache", v_cache, k.dtype)
    expect_shape("places", places, (k.shape[0],))
    expect_dtype("places", places, torch.int64)
    _expect_contiguous(k_cache, v_cache)
    if not k.is_cuda:
        reference.kv_write(k, v, k_cache, v_cache, places)
        return
    from kernels.attention import kernel

    kernel.kv_write(_packed(k), _packed(v), k_cache, v_cache, places)


def _packed(x: torch.Tensor) -> torch.Tensor:
    """x [T, HKV, D] with a token's elements adjacent; a view of a fused projection already is."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def _expect_contiguous(k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        expect(cache.is_contiguous(), name, "a contiguous tensor", f"strides {cache.stride()}")


def _check(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
) -> None:
    expect_dtype("q", q, *FLOATS)
    expect_shape("q", q, ("T", "HQ", "D"))
    expect_shape("k_cache", k_cache, ("NB", "BS", "HKV", q.shape[2]))
    expect_shape("v_cache", v_cache, tuple(k_cache.shape))
    expect(
        q.shape[1] % k_cache.shape[2] == 0,
        "HQ",
        f"a multiple of HKV = {k_cache.shape[2]}",
        q.shape[1],
    )
    num_seqs = block_tables.shape[0]
    expect_shape("block_tables", block_tables, (num_seqs, "max_blocks"))
    expect_shape("query_start", query_start, (num_seqs + 1,))
    expect_shape("context_lens", context_lens, (num_seqs,))
    for name, tensor in (("k_cache", k_cache), ("v_cache", v_cache)):
        expect_dtype(name, tensor, q.dtype)
        expect_device(name, tensor, q.device)
    ids = (("block_tables", block_tables), ("query_start", query_start))
    for name, tensor in (*ids, ("context_lens", context_lens)):
        expect_dtype(name, tensor, torch.int32)
        expect_device(name, tensor, q.device)


def _check_hints(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_tables: torch.Tensor,
    num_decodes: int,
    max_decode_context: int,
    prefills: Sequence[tuple[int, int]],
) -> None:
    num_seqs, max_blocks = block_tables.shape
    expect(
        num_decodes + len(prefills) == num_seqs, "sequences", num_seqs, num_decodes + len(prefills)
    )
    num_queries = num_decodes + sum(queries for queries, _ in prefills)
    expect(num_queries == q.shape[0], "queries of all sequences", q.shape[0], num_queries)
    longest = max([max_decode_context] + [context for _, context in prefills])
    most = max_blocks * k_cache.shape[1]
    expect(longest <= most, "positions of a sequence", f"at most {most}", longest)
    for queries, context in prefills:
        expect(1 <= queries <= context, "queries of a prefill", f"1 to {context}", queries)
