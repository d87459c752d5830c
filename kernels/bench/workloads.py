"""The named adapter mixes that tests and benches share, and the pools behind them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.lora import LoraBatch, LoraWeights

WORKLOADS = (
    "none",
    "one-token",
    "identical",
    "distinct",
    "uniform",
    "zipf:1.5",
    "skewed",
    "mixed-ranks",
)


@dataclass(frozen=True)
class Group:
    """A projection group's shape: input size, and the widths of its slices."""

    hidden: int
    slice_sizes: tuple[int, ...]


@dataclass(frozen=True)
class Pool:
    """A page pool with every slot filled, its views by group, and a batch that uses it."""

    pages: torch.Tensor
    weights: tuple[LoraWeights, ...]
    batch: LoraBatch


def token_slots(name: str, num_tokens: int, num_slots: int, seed: int = 0) -> list[int]:
    """Each token's slot, -1 for none. ValueError: the name is not one of WORKLOADS."""
    if name == "none":
        return [-1] * num_tokens
    if name == "one-token":
        return [0 if token == num_tokens // 2 else -1 for token in range(num_tokens)]
    if name == "identical":
        return [0] * num_tokens
    if name == "distinct":
        return [token % num_slots for token in range(num_tokens)]
    slots: list[int] = _drawn_slots(name, num_tokens, num_slots, seed).tolist()
    return slots


def _drawn_slots(name: str, num_tokens: int, num_slots: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    kind, _, parameter = name.partition(":")
    if kind in ("uniform", "mixed-ranks"):
        # One value in num_slots + 1 stands for the base model.
        return torch.randint(-1, num_slots, (num_tokens,), generator=generator)
    if kind == "zipf":
        weight = torch.arange(1, num_slots + 1).float() ** -float(parameter)
        return torch.multinomial(weight, num_tokens, replacement=True, generator=generator)
    if kind == "skewed":
        # Nine tokens in ten share an adapter, the others are spread.
        spread = torch.randint(0, num_slots, (num_tokens,), generator=generator)
        return spread.where(torch.rand(num_tokens, generator=generator) < 0.1, 0)
    raise ValueError(f"workload: expected one of {', '.join(WORKLOADS)}, got {name}")


def slot_ranks(name: str, num_slots: int, rank: int) -> list[int]:
    """rank for each slot; with mixed-ranks 1, 2, 3, 4, 8, … up to it, odd ones among them."""
    if name != "mixed-ranks":
        return [rank] * num_slots
    ladder = [r for r in (1, 3, 4, 8, 13, 16, 32, 33, 64) if r <= rank]
    return [ladder[slot % len(ladder)] for slot in range(num_slots)]


def make_pool(
    groups: Sequence[Group],
    slots: Sequence[int],
    ranks: Sequence[int],
    *,
    rows_per_page: int = 8,
    max_rank: int = 64,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> Pool:
    """Random rows for every slot on shuffled pages; free pages and rows past a rank hold NaN."""
    generator = torch.Generator(device).manual_seed(seed)
    needed = [-(-rank // rows_per_page) for rank in ranks]
    table, owner = _dealt(needed, -(-max_rank // rows_per_page), sum(needed) + 3, seed)
    sizes = [_page_elements(group, rows_per_page) for group in groups]
    pages = torch.empty(len(owner), sum(sizes), dtype=dtype, device=device)
    pages.normal_(generator=generator)
    pages[(owner < 0).to(device)] = float("nan")
    weights = _views(pages, groups, rows_per_page)
    _poison_unused_rows(weights, table, ranks)
    num_columns = sum(len(group.slice_sizes) for group in groups)
    scales = 0.5 + torch.rand(len(ranks), num_columns, generator=generator, device=device)
    ints = (torch.tensor(slots, dtype=torch.int32), table, torch.tensor(ranks, dtype=torch.int32))
    token_slot, table, rank_of = (tensor.to(device) for tensor in ints)
    batch = LoraBatch(token_slot, table, rank_of, scales, owner.to(device))
    return Pool(pages, weights, batch)


def _dealt(
    needed: Sequence[int], max_pages: int, num_pages: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shuffled pages, as many as each slot needs: the page table, and each page's owner."""
    order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(seed)).tolist()
    table = torch.full((len(needed), max_pages), -1, dtype=torch.int32)
    owner = torch.full((num_pages,), -1, dtype=torch.int32)
    for slot, count in enumerate(needed):
        taken, order = order[:count], order[count:]
        table[slot, :count] = torch.tensor(taken, dtype=torch.int32)
        owner[taken] = slot
    return table, owner


def _page_elements(group: Group, rows_per_page: int) -> int:
    per_row = len(group.slice_sizes) * group.hidden + sum(group.slice_sizes)
    return rows_per_page * per_row


def _views(pages: torch.Tensor, groups: Sequence[Group], rows: int) -> tuple[LoraWeights, ...]:
    views, start, column = [], 0, 0
    for group in groups:
        num_slices, width = len(group.slice_sizes), sum(group.slice_sizes)
        middle = start + num_slices * rows * group.hidden
        end = middle + rows * width
        a = pages[:, start:middle].view(-1, num_slices, rows, group.hidden)
        b = pages[:, middle:end].view(-1, rows, width)
        views.append(LoraWeights(a, b, group.slice_sizes, column))
        start, column = end, column + num_slices
    return tuple(views)


def _poison_unused_rows(
    weights: Sequence[LoraWeights], table: torch.Tensor, ranks: Sequence[int]
) -> None:
    for slot, rank in enumerate(ranks):
        rows_per_page = weights[0].a.shape[2]
        used = rank % rows_per_page
        if used:
            last = int(table[slot, rank // rows_per_page])
            for group in weights:
                group.a[last, :, used:] = float("nan")
                group.b[last, used:] = float("nan")
