"""Launches of the Triton kernels. Nothing on the host depends on the mix of adapters."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton

from kernels.launch import launch_options
from kernels.lora.batch import LoraBatch, LoraWeights, TilePlan
from kernels.lora.expand_kernel import lora_expand_kernel
from kernels.lora.shrink_kernel import lora_shrink_kernel
from kernels.lora.table import (
    WIDE_TOKENS,
    ExpandBlocks,
    ShrinkBlocks,
    expand_blocks,
    shrink_blocks,
)


def new_shares(
    x: torch.Tensor, weights: LoraWeights, batch: LoraBatch, blocks: ShrinkBlocks | None = None
) -> torch.Tensor:
    """Room for h [SPLIT, T, NS, max_rank]: fp32 if H is in several shares, else x's dtype."""
    chosen = blocks or shrink_blocks(x.shape[0], x.shape[1], x.element_size())
    max_rank = batch.page_table.shape[1] * weights.a.shape[2]
    dtype = x.dtype if chosen.split == 1 else torch.float32
    shape = (chosen.split, x.shape[0], weights.a.shape[1], max_rank)
    return x.new_empty(shape, dtype=dtype)


def shrink(
    x: torch.Tensor,
    weights: LoraWeights,
    batch: LoraBatch,
    plan: TilePlan,
    h: torch.Tensor,
    blocks: ShrinkBlocks | None = None,
    dependent: bool = True,
) -> None:
    """Fills h (new_shares) with a token's own rows, to the end of their page; no other is read.

    dependent: may start while the kernel before it on the stream ends.
    """
    split, num_tokens, num_slices, max_rank = h.shape
    hidden, num_tiles = x.shape[1], plan.num_pages.shape[0]
    chosen = blocks or shrink_blocks(num_tokens, hidden, x.element_size())
    if num_tokens:
        lora_shrink_kernel[(max(1, chosen.programs // num_tiles), num_tiles)](
            x,
            weights.a,
            batch.scales,
            weights.row_scales,
            plan.order,
            plan.slots,
            plan.entries,
            plan.num_pages,
            h,
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
            BT=plan.tokens_per_tile,
            BR=chosen.rows,
            BH=chosen.hidden,
            SPLIT=split,
            STEPS=triton.cdiv(triton.cdiv(hidden, chosen.hidden), split),
            SCALED=weights.row_scales is not None,
            WIDE=plan.tokens_per_tile >= WIDE_TOKENS,
            UPCAST=not x.is_cuda,
            num_warps=chosen.num_warps,
            num_stages=chosen.num_stages,
            **launch_options(x.device, dependent),
        )


def expand(
    h: torch.Tensor,
    weights: LoraWeights,
    plan: TilePlan,
    y: torch.Tensor,
    blocks: ExpandBlocks | None = None,
) -> None:
    """y [T, N] += Σ over shares of h · B, in place; h as shrink leaves it."""
    split, num_tokens, num_slices, max_rank = h.shape
    chosen = blocks or expand_blocks(num_tokens, y.element_size())
    sizes = (*weights.slice_sizes, 0, 0)[:3]
    num_blocks = sum(triton.cdiv(size, chosen.columns) for size in sizes)
    if num_tokens:
        lora_expand_kernel[(plan.num_pages.shape[0], num_blocks)](
            h,
            weights.b,
            plan.order,
            plan.slots,
            plan.entries,
            plan.num_pages,
            y,
            num_tokens,
            *sizes,
            plan.entries.shape[1],
            max_rank,
            *weights.b.stride()[:2],
            y.stride(0),
            NS=num_slices,
            PR=weights.b.shape[1],
            BT=plan.tokens_per_tile,
            BN=chosen.columns,
            FIRST=chosen.first_rows,
            BR=chosen.rows,
            SPLIT=split,
            WIDE=plan.tokens_per_tile >= WIDE_TOKENS,
            UPCAST=not y.is_cuda,
            num_warps=chosen.num_warps,
            num_stages=chosen.num_stages,
            **launch_options(y.device),
        )
