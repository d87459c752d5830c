"""h[t, s] = scale · A_s x[t] and y[t] += B h[t], adapter by adapter, in fp32."""

import torch

from kernels.lora.batch import LoraBatch, LoraWeights

Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def readable_rows(batch: LoraBatch, slot: int, rows_per_page: int) -> Rows:
    """What slot may read, within its rank and its own pages: rank rows, pages, places in page."""
    table, owner = batch.page_table[slot].long(), batch.page_owner
    num_rows = min(int(batch.ranks[slot]), table.shape[0] * rows_per_page)
    rows = torch.arange(max(num_rows, 0), device=table.device)
    pages = table[rows // rows_per_page]
    inside = (pages >= 0) & (pages < owner.shape[0])
    owned = inside & (owner[pages.clamp(0, owner.shape[0] - 1)] == slot)
    rows, pages = rows[owned], pages[owned]
    return rows, pages, rows % rows_per_page


def rows_of(pool: torch.Tensor, *index: torch.Tensor | int) -> torch.Tensor:
    """pool[index] in fp32. torch indexes no fp8 tensor: its bytes stand for it."""
    if pool.element_size() > 1:
        return pool[index].float()
    return pool.view(torch.uint8)[index].view(pool.dtype).float()


def used_slots(batch: LoraBatch) -> list[int]:
    num_slots = batch.page_table.shape[0]
    return [slot for slot in sorted(set(batch.token_slot.tolist())) if 0 <= slot < num_slots]


def shrink(x: torch.Tensor, weights: LoraWeights, batch: LoraBatch) -> torch.Tensor:
    """x [T, H] → h [T, NS, max_rank] fp32; zero where a token has no such rank row."""
    _, num_slices, rows_per_page, _ = weights.a.shape
    h = x.new_zeros(
        (x.shape[0], num_slices, batch.page_table.shape[1] * rows_per_page), dtype=torch.float32
    )
    for slot in used_slots(batch):
        tokens = (batch.token_slot == slot).nonzero().squeeze(1)
        rows, pages, places = readable_rows(batch, slot, rows_per_page)
        for s in range(num_slices):
            a = rows_of(weights.a, pages, s, places)  # [R, H]
            scale = batch.scales[slot, weights.column + s]
            if weights.row_scales is not None:
                scale = scale * weights.row_scales[pages, s, places]
            h[tokens[:, None], s, rows] = scale * (x[tokens].float() @ a.T)
    return h


def expand(y: torch.Tensor, h: torch.Tensor, weights: LoraWeights, batch: LoraBatch) -> None:
    """y [T, N] += h B, slice by slice, in place; h as shrink returns it."""
    rows_per_page = weights.b.shape[1]
    for slot in used_slots(batch):
        tokens = (batch.token_slot == slot).nonzero().squeeze(1)
        rows, pages, places = readable_rows(batch, slot, rows_per_page)
        b = rows_of(weights.b, pages, places)  # [R, N]
        parts = torch.split_with_sizes(b, weights.slice_sizes, dim=1)
        delta = [h[tokens, s][:, rows] @ part for s, part in enumerate(parts)]
        y[tokens] = (y[tokens].float() + torch.cat(delta, dim=1)).to(y.dtype)
