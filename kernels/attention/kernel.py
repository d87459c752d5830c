"""Attention of a step in Triton, two launches at most, and the write of new keys and values."""
# mypy: allow-untyped-defs, allow-incomplete-defs

from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl

from kernels.attention.decode import decode
from kernels.attention.prefill import prefill


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
    """Caches contiguous, tables by rows. prefills: as on the device."""
    if q.stride(2) != 1:
        q = q.contiguous()
    out = q.new_empty(q.shape)
    decode_with, prefill_with = _kernels_for(q, k_cache, v_cache)
    if num_decodes:
        tables, lens = block_tables[:num_decodes], context_lens[:num_decodes]
        queries, rows = q[:num_decodes], out[:num_decodes]
        decode_with(queries, k_cache, v_cache, tables, lens, scale, max_decode_context, rows)
    if prefills:
        tables, lens = block_tables[num_decodes:], context_lens[num_decodes:]
        starts = query_start[num_decodes:]
        tensors = (q, k_cache, v_cache, tables, starts, lens)
        prefill_with(*tensors, scale, prefills, out)
    return out


def attention_of_any(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    decodes: tuple[torch.Tensor, torch.Tensor],
    chunks: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    scale: float,
) -> torch.Tensor:
    """Caches contiguous. Two launches, whatever is in the step."""
    if q.stride(2) != 1:
        q = q.contiguous()
    out = q.new_empty(q.shape)
    decode_with, prefill_with = _kernels_for(q, k_cache, v_cache)
    tables, lens = decodes
    num_rows, longest = len(lens), tables.shape[1] * k_cache.shape[1]
    # It writes zeros where no decode is: before the chunks', some of whose rows those are.
    rows = out[:num_rows]
    decode_with(q[:num_rows], k_cache, v_cache, tables, lens, scale, longest, rows)
    prefill_with(q, k_cache, v_cache, *chunks, scale, None, out)
    return out


def _kernels_for(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
) -> tuple[Callable[..., None], Callable[..., None]]:
    """(decode, prefill)."""
    if q.is_cuda and torch.cuda.get_device_capability(q.device)[0] == 9:
        from kernels.attention import hopper

        if hopper.fits(q, k_cache, v_cache):
            return hopper.decode, hopper.prefill
    return decode, prefill


@triton.jit
def kv_write_kernel(
    # read
    k,
    v,
    places,
    # written
    k_cache,
    v_cache,
    # sizes
    num_places,
    # strides
    stride_k,
    stride_v,
    # meta: ELEMENTS = HKV · D of a token
    ELEMENTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_token = tl.program_id(0).to(tl.int64)
    place = tl.load(places + i_token)
    if (place < 0) | (place >= num_places):
        return
    i_e = tl.arange(0, BLOCK)
    m_e = i_e < ELEMENTS
    b_k = tl.load(k + i_token * stride_k + i_e, mask=m_e)
    b_v = tl.load(v + i_token * stride_v + i_e, mask=m_e)
    tl.store(k_cache + place * ELEMENTS + i_e, b_k, mask=m_e)
    tl.store(v_cache + place * ELEMENTS + i_e, b_v, mask=m_e)


def kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    places: torch.Tensor,
) -> None:
    """k, v [T, HKV, D], a token's elements adjacent; caches contiguous. In place."""
    num_tokens, elements = k.shape[0], k.shape[1] * k.shape[2]
    if num_tokens:
        kv_write_kernel[(num_tokens,)](
            k,
            v,
            places,
            k_cache,
            v_cache,
            k_cache.shape[0] * k_cache.shape[1],
            k.stride(0),
            v.stride(0),
            ELEMENTS=elements,
            BLOCK=triton.next_power_of_2(elements),
        )
