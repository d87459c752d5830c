"""Launches of the Triton kernels. Nothing on the host depends on the mix of adapters."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from typing import Any

import torch
import triton

from kernels.launch import launch_options
from kernels.lora.batch import LoraBatch, LoraWeights, TilePlan
from kernels.lora.expand_kernel import lora_expand_kernel
from kernels.lora.list_kernel import list_rows_kernel
from kernels.lora.shrink_kernel import lora_shrink_kernel
from kernels.lora.shrunk import Shrunk
from kernels.lora.table import (
    LIST_MARGIN,
    LIST_ROWS,
    MAX_MIXED_TOKENS,
    WIDE_TOKENS,
    ExpandBlocks,
    ShrinkBlocks,
    expand_blocks,
    shrink_blocks,
)


def new_shrunk(
    x: torch.Tensor,
    weights: LoraWeights,
    batch: LoraBatch,
    plan: TilePlan,
    blocks: ShrinkBlocks | None = None,
) -> Shrunk:
    """Room for what shrink fills. Shares are fp32 if they are several, else of x's dtype."""
    num_tokens, (_, num_slices, rows_per_page, _) = x.shape[0], weights.a.shape
    chosen = blocks or shrink_blocks(num_tokens, x.shape[1], x.element_size())
    dtype = x.dtype if chosen.split == 1 else torch.float32
    max_rank = batch.page_table.shape[1] * rows_per_page
    shares = x.new_empty((chosen.split, num_tokens, num_slices, max_rank), dtype=dtype)
    # A list in full for each tile of a long prefill would take hundreds of megabytes.
    if num_tokens > MAX_MIXED_TOKENS:
        return Shrunk(shares, weights.column)
    sizes = plan.sizes
    shape = (sizes.num_tiles, num_slices, sizes.block_tokens, sizes.max_rows)
    return Shrunk(shares, weights.column, x.new_empty(shape))


def shrink(
    x: torch.Tensor,
    weights: LoraWeights,
    batch: LoraBatch,
    plan: TilePlan,
    h: Shrunk,
    blocks: ShrinkBlocks | None = None,
    dependent: bool = True,
) -> None:
    """Fills h (new_shrunk): shares with a token's own rows to the end of their page, then the list.

    dependent: may start while the kernel before it on the stream ends.
    """
    if x.shape[0]:
        _shrink(x, weights, batch, plan, h.shares, blocks, dependent)
        if h.listed is not None:
            list_rows(h.shares, plan, weights.a.shape[2], h.listed)


def _shrink(
    x: torch.Tensor,
    weights: LoraWeights,
    batch: LoraBatch,
    plan: TilePlan,
    shares: torch.Tensor,
    blocks: ShrinkBlocks | None,
    dependent: bool,
) -> None:
    _, num_tokens, _, max_rank = shares.shape
    hidden, num_tiles = x.shape[1], plan.sizes.num_tiles
    chosen = blocks or shrink_blocks(num_tokens, hidden, x.element_size())
    read = (x, weights.a, batch.scales, weights.row_scales, *plan.tensors)
    sizes = (num_tokens, hidden, plan.sizes.capacity, max_rank)
    strides = (x.stride(0), *weights.a.stride()[:3], batch.scales.stride(0))
    lora_shrink_kernel[(max(1, chosen.programs // num_tiles), num_tiles)](
        *read,
        shares,
        *sizes,
        *strides,
        weights.column,
        **_shrink_meta(x, weights, plan, shares.shape[0], chosen),
        **launch_options(x.device, dependent),
    )


def _shrink_meta(
    x: torch.Tensor, weights: LoraWeights, plan: TilePlan, split: int, blocks: ShrinkBlocks
) -> dict[str, Any]:
    sizes = plan.sizes
    return {
        "NS": weights.a.shape[1],
        "PR": weights.a.shape[2],
        "TILE": sizes.tokens_per_tile,
        "BT": sizes.block_tokens,
        "BR": blocks.rows,
        "BH": blocks.hidden,
        "SPLIT": split,
        "STEPS": triton.cdiv(triton.cdiv(x.shape[1], blocks.hidden), split),
        "SCALED": weights.row_scales is not None,
        "WIDE": sizes.tokens_per_tile >= WIDE_TOKENS,
        "UPCAST": not x.is_cuda,
        "num_warps": blocks.num_warps,
        "num_stages": blocks.num_stages,
    }


def list_rows(
    shares: torch.Tensor, plan: TilePlan, rows_per_page: int, listed: torch.Tensor
) -> None:
    """listed [tiles, NS, tokens of a block, max_rows]: the shares' sum, zeros behind a list's end.

    shares [P, T, NS, max_rank], T at least 1.
    """
    split, num_tokens, num_slices, max_rank = shares.shape
    num_tiles, _, block_tokens, max_rows = listed.shape
    sizes = (num_tokens, plan.sizes.capacity, max_rank, max_rows)
    meta = {
        "NS": num_slices,
        "PR": rows_per_page,
        "TILE": plan.sizes.tokens_per_tile,
        "BT": block_tokens,
        "BR": LIST_ROWS,
        "MARGIN": LIST_MARGIN,
        "SPLIT": split,
        "num_warps": 4,
        **launch_options(shares.device),
    }
    grid = (num_tiles, num_slices, max_rows // LIST_ROWS)
    list_rows_kernel[grid](shares, *plan.tensors, listed, *sizes, **meta)


def expand(
    y: torch.Tensor,
    h: Shrunk,
    weights: LoraWeights,
    plan: TilePlan,
    blocks: ExpandBlocks | None = None,
) -> None:
    """y [T, N] += h B, in place; h as shrink leaves it."""
    num_tokens, rows = y.shape[0], h.rows
    if not num_tokens:
        return
    chosen = blocks or expand_blocks(num_tokens, y.element_size())
    widths = (*weights.slice_sizes, 0, 0)[:3]
    num_blocks = sum(triton.cdiv(width, chosen.columns) for width in widths)
    read = (rows, weights.b, *plan.tensors)
    sizes = (num_tokens, *widths, plan.sizes.capacity, rows.shape[3])
    strides = (*weights.b.stride()[:2], y.stride(0))
    meta = {"NS": len(weights.slice_sizes), "LISTED": h.listed is not None}
    meta |= expand_meta(y, weights, plan, chosen.columns, chosen)
    lora_expand_kernel[(plan.sizes.num_tiles, num_blocks)](*read, y, *sizes, *strides, **meta)


def expand_meta(
    y: torch.Tensor, weights: LoraWeights, plan: TilePlan, columns: int, blocks: ExpandBlocks
) -> dict[str, Any]:
    """What a kernel with an expand in it is compiled for; columns: of each program."""
    return {
        "PR": weights.b.shape[1],
        "TILE": plan.sizes.tokens_per_tile,
        "BT": plan.sizes.block_tokens,
        "BN": columns,
        "BR": blocks.rows,
        "UPCAST": not y.is_cuda,
        "num_warps": blocks.num_warps,
        "num_stages": blocks.num_stages,
        **launch_options(y.device),
    }
