"""Launches of the Triton kernels. Nothing on the host depends on the mix of adapters."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

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
    split, num_tokens, num_slices, max_rank = shares.shape
    hidden, num_tiles = x.shape[1], plan.num_pages.shape[0]
    chosen = blocks or shrink_blocks(num_tokens, hidden, x.element_size())
    lora_shrink_kernel[(max(1, chosen.programs // num_tiles), num_tiles)](
        x,
        weights.a,
        batch.scales,
        weights.row_scales,
        plan.order,
        plan.slots,
        plan.entries,
        plan.num_pages,
        shares,
        num_tokens,
        hidden,
        plan.entries.shape[1],
        max_rank,
        x.stride(0),
        *weights.a.stride()[:3],
        batch.scales.stride(0),
        weights.column,
        NS=num_slices,
        PR=weights.a.shape[2],
        TILE=plan.sizes.tokens_per_tile,
        BT=plan.sizes.block_tokens,
        BR=chosen.rows,
        BH=chosen.hidden,
        SPLIT=split,
        STEPS=triton.cdiv(triton.cdiv(hidden, chosen.hidden), split),
        SCALED=weights.row_scales is not None,
        WIDE=plan.sizes.tokens_per_tile >= WIDE_TOKENS,
        UPCAST=not x.is_cuda,
        num_warps=chosen.num_warps,
        num_stages=chosen.num_stages,
        **launch_options(x.device, dependent),
    )


def list_rows(
    shares: torch.Tensor, plan: TilePlan, rows_per_page: int, listed: torch.Tensor
) -> None:
    """listed [tiles, NS, tokens of a block, max_rows]: the shares' sum, zeros behind a list's end.

    shares [P, T, NS, max_rank], T at least 1.
    """
    split, num_tokens, num_slices, max_rank = shares.shape
    num_tiles, _, block_tokens, max_rows = listed.shape
    list_rows_kernel[(num_tiles, num_slices, max_rows // LIST_ROWS)](
        shares,
        plan.order,
        plan.slots,
        plan.entries,
        plan.num_pages,
        listed,
        num_tokens,
        plan.entries.shape[1],
        max_rank,
        max_rows,
        NS=num_slices,
        PR=rows_per_page,
        TILE=plan.sizes.tokens_per_tile,
        BT=block_tokens,
        BR=LIST_ROWS,
        MARGIN=LIST_MARGIN,
        SPLIT=split,
        num_warps=4,
        **launch_options(shares.device),
    )


def expand(
    y: torch.Tensor,
    h: Shrunk,
    weights: LoraWeights,
    plan: TilePlan,
    blocks: ExpandBlocks | None = None,
) -> None:
    """y [T, N] += h B, in place; h as shrink leaves it."""
    num_tokens, rows = y.shape[0], h.rows
    chosen = blocks or expand_blocks(num_tokens, y.element_size())
    sizes = (*weights.slice_sizes, 0, 0)[:3]
    num_blocks = sum(triton.cdiv(size, chosen.columns) for size in sizes)
    if num_tokens:
        lora_expand_kernel[(plan.num_pages.shape[0], num_blocks)](
            rows,
            weights.b,
            plan.order,
            plan.slots,
            plan.entries,
            plan.num_pages,
            y,
            num_tokens,
            *sizes,
            plan.entries.shape[1],
            rows.shape[3],
            *weights.b.stride()[:2],
            y.stride(0),
            NS=len(weights.slice_sizes),
            PR=weights.b.shape[1],
            TILE=plan.sizes.tokens_per_tile,
            BT=plan.sizes.block_tokens,
            BN=chosen.columns,
            BR=chosen.rows,
            LISTED=h.listed is not None,
            UPCAST=not y.is_cuda,
            num_warps=chosen.num_warps,
            num_stages=chosen.num_stages,
            **launch_options(y.device),
        )
