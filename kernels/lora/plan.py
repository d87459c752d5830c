"""The order in which the Triton kernels walk a batch: tokens sorted by adapter, cut into tiles.

Made on the device, once a step, of tensors whose shapes depend on T and S alone: a captured graph
that contains it serves any mix.
"""

import torch

from kernels.lora.batch import LoraBatch, TilePlan

# Up to here a step is decode-shaped: a tile of 16, the least a tensor core takes, wastes least.
MAX_DECODE_TOKENS = 256


def plan_tiles(batch: LoraBatch, rows_per_page: int) -> TilePlan:
    """Tiles of the batch, and its page table with every page that must not be read taken out."""
    num_tokens, num_slots = batch.token_slot.shape[0], batch.page_table.shape[0]
    size = 16 if num_tokens <= MAX_DECODE_TOKENS else 64
    slot, known = batch.token_slot.long(), _within(batch.token_slot, num_slots)
    key = slot.masked_fill(~known, num_slots)
    counts = key.new_zeros(num_slots + 1).scatter_add_(0, key, torch.ones_like(key))[:num_slots]
    tiles = (counts + size - 1) // size
    tile_end, token_end = tiles.cumsum(0), counts.cumsum(0)
    num_tiles = min(num_tokens, -(-num_tokens // size) + num_slots)
    tile = torch.arange(num_tiles, device=slot.device)
    owner = torch.searchsorted(tile_end, tile, right=True)
    idle = owner >= num_slots
    owner = owner.clamp(max=num_slots - 1)
    done = (tile - (tile_end - tiles)[owner]) * size
    return TilePlan(
        order=torch.argsort(key, stable=True).int(),
        tile_slot=owner.masked_fill(idle, -1).int(),
        tile_start=((token_end - counts)[owner] + done).int(),
        tile_len=(counts[owner] - done).clamp(0, size).int(),
        pages=_checked_pages(batch),
        ranks=batch.ranks.clamp(0, batch.page_table.shape[1] * rows_per_page),
        tokens_per_tile=size,
    )


def _checked_pages(batch: LoraBatch) -> torch.Tensor:
    table, num_pages = batch.page_table, batch.page_owner.shape[0]
    slot = torch.arange(table.shape[0], device=table.device)[:, None]
    inside = _within(table, num_pages)
    owner = batch.page_owner[table.clamp(0, num_pages - 1).long()]
    return table.masked_fill(~(inside & (owner == slot)), -1)


def _within(index: torch.Tensor, size: int) -> torch.Tensor:
    return (index >= 0) & (index < size)
