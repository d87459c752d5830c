"""Argmax with a check in Triton: parts of rows, then the parts of a row; each element read once."""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

PART, NUM_WARPS = 4096, 4


@triton.jit(do_not_specialize=["num_parts"])
def argmax_parts_kernel(
    # read: [B, V]
    logits,
    # written: [B, parts]
    tops,
    places,
    # sizes
    num_parts,
    # strides
    stride_row,
    # meta
    V: tl.constexpr,
    BV: tl.constexpr,
):
    """A part's largest element and its index, -1 if one is not finite."""
    i_row = (tl.program_id(0) // num_parts).to(tl.int64)
    i_v = tl.program_id(0) % num_parts * BV + tl.arange(0, BV)
    m_v = i_v < V
    b_x = tl.load(logits + i_row * stride_row + i_v, mask=m_v, other=0.0).to(tl.float32)
    # False for NaN too.
    is_finite = tl.abs(b_x) < float("inf")
    b_x = tl.where(m_v & is_finite, b_x, float("-inf"))
    b_top, i_top = tl.max(b_x, 0, return_indices=True, return_indices_tie_break_left=True)
    num_bad = tl.sum(tl.where(is_finite, 0, 1), 0)
    i_top += tl.program_id(0) % num_parts * BV
    tl.store(tops + tl.program_id(0), b_top)
    tl.store(places + tl.program_id(0), tl.where(num_bad > 0, -1, i_top))


@triton.jit(do_not_specialize=["num_parts"])
def argmax_rows_kernel(
    # read: [B, parts]
    tops,
    places,
    # written: [B]
    tokens,
    # sizes
    num_parts,
    # meta
    BP: tl.constexpr,
):
    i_part = tl.arange(0, BP)
    m_part = i_part < num_parts
    start = tl.program_id(0) * num_parts
    b_top = tl.load(tops + start + i_part, mask=m_part, other=float("-inf"))
    b_place = tl.load(places + start + i_part, mask=m_part, other=0)
    _, i_best = tl.max(b_top, 0, return_indices=True, return_indices_tie_break_left=True)
    token = tl.sum(tl.where(i_part == i_best, b_place, 0), 0)
    num_bad = tl.sum(tl.where(b_place < 0, 1, 0), 0)
    tl.store(tokens + tl.program_id(0), tl.where(num_bad > 0, -1, token).to(tl.int64))


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """logits [B, V], elements of a row adjacent. → a new [B] int64."""
    num_rows, vocab = logits.shape
    num_parts = triton.cdiv(vocab, PART)
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if not num_rows:
        return tokens
    tops = torch.empty(num_rows, num_parts, dtype=torch.float32, device=logits.device)
    places = torch.empty(num_rows, num_parts, dtype=torch.int32, device=logits.device)
    argmax_parts_kernel[(num_rows * num_parts,)](
        logits, tops, places, num_parts, logits.stride(0), V=vocab, BV=PART, num_warps=NUM_WARPS
    )
    argmax_rows_kernel[(num_rows,)](
        tops, places, tokens, num_parts, BP=triton.next_power_of_2(num_parts), num_warps=1
    )
    return tokens
