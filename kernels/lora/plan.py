"""How the Triton kernels walk a batch: tokens in the order of their adapters, cut into tiles.

Made on the device, once a step, of tensors whose shapes depend on T and S alone: a captured graph
that contains it serves any mix.
"""

import torch
import triton

from kernels.contract import expect
from kernels.lora.batch import LoraBatch, TilePlan
from kernels.lora.plan_kernel import list_pages_kernel, sort_tokens_kernel
from kernels.lora.table import tokens_per_tile

# Up to here one launch sorts by counting: T² comparisons, no more than a program can hold.
MAX_COUNTED_TOKENS = 256
# Rank rows that one step of the tensor cores takes: a sum's terms are grouped by them.
MMA_ROWS = 16
# The owner of a page that only fills up a list.
NOBODY = 2**16 - 1


def plan_tiles(batch: LoraBatch, rows_per_page: int) -> TilePlan:
    """The walk over a batch: tokens in their adapters' order, and what each tile of them reads."""
    num_tokens, (num_slots, max_pages) = batch.token_slot.shape[0], batch.page_table.shape
    expect(num_slots < NOBODY, "adapter slots", f"fewer than {NOBODY}", num_slots)
    expect(max_pages <= 2**8, "pages of a slot", "at most 256", max_pages)
    expect(rows_per_page < 2**8, "rows of a page", "fewer than 256", rows_per_page)
    size = tokens_per_tile(num_tokens)
    num_tiles = triton.cdiv(num_tokens, size)
    align = max(1, MMA_ROWS // rows_per_page)
    capacity = max(1, min(size, num_slots) * triton.cdiv(max_pages, align) * align)
    order, slots = _order(batch.token_slot, num_slots)
    entries = order.new_empty((num_tiles, capacity), dtype=torch.int64)
    num_pages = order.new_empty(num_tiles)
    if num_tiles:
        list_pages_kernel[(num_tiles,)](
            slots,
            batch.page_table,
            batch.ranks,
            batch.page_owner,
            entries,
            num_pages,
            num_tokens,
            max_pages,
            batch.page_owner.shape[0],
            capacity,
            PR=rows_per_page,
            TILE=size,
            ALIGN=align,
            NOBODY=NOBODY,
        )
    # A plain copy last, once a step: what starts while the kernel before it ends reads the plan
    # before it waits, so the plan must not be that kernel's work.
    return TilePlan(order, slots, entries, num_pages.clone(), tokens_per_tile=size)


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
