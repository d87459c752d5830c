"""How the Triton kernels walk a batch: tokens in the order of their adapters, cut into tiles.

Made on the device, once a step, of tensors whose shapes depend on T and S alone: a captured graph
that contains it serves any mix.
"""

import torch
import triton

from kernels.lora.batch import LoraBatch, TilePlan, sizes_of
from kernels.lora.plan_kernel import list_pages_kernel, sort_tokens_kernel
from kernels.lora.sizes import NOBODY

# Up to here one launch sorts by counting: T² comparisons, no more than a program can hold.
MAX_COUNTED_TOKENS = 256


def plan_tiles(batch: LoraBatch, rows_per_page: int) -> TilePlan:
    """The walk over a batch: tokens in their adapters' order, and what each tile of them reads."""
    sizes = sizes_of(batch, rows_per_page)
    order, slots = _order(batch.token_slot, sizes.num_slots)
    entries = order.new_empty((sizes.num_tiles, sizes.capacity), dtype=torch.int64)
    num_pages = order.new_empty(sizes.num_tiles)
    if sizes.num_tiles:
        read = (slots, batch.page_table, batch.ranks, batch.page_owner)
        numbers = (sizes.num_tokens, sizes.max_pages, sizes.pool_pages, sizes.capacity)
        list_pages_kernel[(sizes.num_tiles,)](
            *read,
            entries,
            num_pages,
            *numbers,
            PR=rows_per_page,
            TILE=sizes.tokens_per_tile,
            ALIGN=sizes.align,
            NOBODY=NOBODY,
        )
    # A plain copy last, once a step: what starts while the kernel before it ends reads the plan
    # before it waits, so the plan must not be that kernel's work.
    return TilePlan(order, slots, entries, num_pages.clone(), sizes)


def _order(token_slot: torch.Tensor, num_slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens by slot, those without last, and their slots in this order, -1 for none."""
    num_tokens = token_slot.shape[0]
    if num_tokens > MAX_COUNTED_TOKENS:
        known = (token_slot >= 0) & (token_slot < num_slots)
        keys, order = torch.sort(token_slot.masked_fill(~known, num_slots), stable=True)
        return order.int(), keys.masked_fill(keys == num_slots, -1)
    order, slots = torch.empty_like(token_slot), torch.empty_like(token_slot)
    if num_tokens:
        sort_tokens_kernel[(triton.cdiv(num_tokens, 16),)](
            token_slot,
            order,
            slots,
            num_tokens,
            num_slots,
            BT=16,
            BLOCK=max(16, triton.next_power_of_2(num_tokens)),
        )
    return order, slots
