"""The CPU's form: each adapter's rows meet its own tokens only, all adapters in one batched matmul.

The rows are copied out of the pool once, filled up with zeros to the widest adapter's pages, and
kept while the same adapters are active. Tokens are placed adapter by adapter, filled up to the
adapter with the most; where that would more than double them, it is a matmul an adapter instead.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import torch

from kernels.contract import expect, expect_device, expect_shape
from kernels.lora.batch import DenseBatch, DenseRows, LoraBatch, LoraWeights
from kernels.lora.reference import readable_rows


class ActivePages:
    """Owns the gathered rows. Invariant: they equal the pool's for every (slot, version) in held.

    Kept rows serve any subset of their adapters; they are gathered again when another adapter
    joins, or when fewer than a quarter of the kept rows are wanted.
    """

    def __init__(self, weights: Sequence[LoraWeights]) -> None:
        """weights: every group, of one pool. ValueError: of several, or columns that overlap."""
        _check_groups(weights)
        self._weights = tuple(weights)
        self._held: dict[int, Hashable] = {}
        self._rows: dict[int, DenseRows] = {}

    def bind(self, batch: LoraBatch, active: Mapping[int, Hashable]) -> LoraBatch:
        """The batch with its dense form on the CPU, its tiles on CUDA: capture it with the step.

        active: slot → version of its content (the adapter's digest) for every slot in token_slot. A
        slot whose version changed is gathered anew; pages rewritten under one version would be
        served stale. Without active adapters, and with fp8 rows, the batch stays as it is.
        ValueError: a token's slot is not among the active, and would get the base model's answer.
        """
        rows = self._weights[0].a
        expect_device("scales", batch.scales, rows.device)
        expect_shape("page_owner", batch.page_owner, (rows.shape[0],))
        if batch.scales.device.type != "cpu":
            from kernels.lora.plan import plan_tiles

            return replace(batch, plan=plan_tiles(batch, rows.shape[2]))
        token_slots = batch.token_slot.tolist()
        _check_slots(token_slots, active, batch.page_table.shape[0])
        if not active or any(weights.row_scales is not None for weights in self._weights):
            return batch
        if not self._serves(active):
            # In the order of their tokens, who then need not be placed while they keep it.
            in_order = [slot for slot in dict.fromkeys(token_slots) if slot >= 0]
            held = {slot: active[slot] for slot in (*in_order, *sorted(active.keys()))}
            self._gather(batch, held)
        return replace(batch, dense=_placed(token_slots, self._held, self._rows))

    def _serves(self, active: Mapping[int, Hashable]) -> bool:
        if any(self._held.get(slot, _MISSING) != version for slot, version in active.items()):
            return False
        return len(self._held) <= 4 * len(active)

    def _gather(self, batch: LoraBatch, held: dict[int, Hashable]) -> None:
        self._held = held
        rows_per_page = self._weights[0].a.shape[2]
        is_there = _rows_there(batch, list(held), rows_per_page)
        slots = torch.tensor(list(held))
        pages = batch.page_table[slots, : is_there.shape[1] // rows_per_page].long().flatten()
        # A page that the slot may not read is read as page 0, and zeroed.
        pages = pages.where(is_there.view(-1, rows_per_page).any(dim=1), 0)
        scales = batch.scales[slots]  # [G, M]
        # One allocation: as large as it is, it may lie on huge pages, and all is read in each step.
        sizes = [
            is_there.numel() * (w.a.shape[1] * w.a.shape[3] + w.b.shape[2]) for w in self._weights
        ]
        rooms = self._weights[0].a.new_empty(sum(sizes)).split_with_sizes(sizes)
        self._rows = {
            weights.column: _gather_rows(weights, pages, is_there, scales, room)
            for weights, room in zip(self._weights, rooms, strict=True)
        }


def dense_shrink(x: torch.Tensor, weights: LoraWeights, dense: DenseBatch) -> torch.Tensor:
    """Semantics: h = A x. x [T, H] → [places, NS, R] of x's dtype."""
    a_rows = dense.rows[weights.column].a_rows
    placed = x if dense.is_in_order else x.index_select(0, dense.source)
    if dense.is_even:
        h = torch.bmm(placed.view(len(a_rows), -1, x.shape[1]), a_rows)
    else:
        parts = torch.split_with_sizes(placed, dense.counts)
        h = torch.cat([part @ rows for part, rows in zip(parts, a_rows, strict=True)])
    num_slices = len(weights.slice_sizes)
    return h.view(placed.shape[0], num_slices, a_rows.shape[2] // num_slices)


def dense_expand(y: torch.Tensor, h: torch.Tensor, weights: LoraWeights, dense: DenseBatch) -> None:
    """Semantics: y += h B, in place. y [T, N]; h as dense_shrink returns it."""
    rows = dense.rows[weights.column]
    placed = y if dense.is_in_order else y.index_select(0, dense.source)
    # [places, NB, R]
    h = h if rows.slices is None else h.index_select(1, rows.slices)
    if dense.is_even:
        _add(placed, h, rows.b_rows)
    else:
        parts = torch.split_with_sizes(placed, dense.counts)
        h_parts = torch.split_with_sizes(h, dense.counts)
        for part, h_part, b_rows in zip(parts, h_parts, rows.b_rows, strict=True):
            _add(part, h_part, b_rows[None])
    if dense.is_in_order:
        return
    if dense.places is not None:
        placed = placed.index_select(0, dense.places)
    y.index_copy_(0, dense.tokens, placed)


def _add(y: torch.Tensor, h: torch.Tensor, b_rows: torch.Tensor) -> None:
    """y [G · n, N] += h [G · n, NB, R] · b_rows [G, NB, R, W], block by block."""
    num_groups, num_blocks, num_rows, width = b_rows.shape
    b_rows = b_rows.view(-1, num_rows, width)
    if len(y) == num_groups and y.is_contiguous():
        # One token each: blocks lie side by side in memory, and are added to where they are.
        y.view(-1, 1, width).baddbmm_(h.view(-1, 1, num_rows), b_rows)
        return
    blocks = h.view(num_groups, -1, num_blocks, num_rows).transpose(1, 2)
    added = torch.bmm(blocks.reshape(num_groups * num_blocks, -1, num_rows), b_rows)
    added = added.view(num_groups, num_blocks, -1, width).transpose(1, 2)
    y.view(num_groups, -1, num_blocks, width).add_(added)


def _placed(
    token_slots: list[int], held: Mapping[int, Hashable], rows: Mapping[int, DenseRows]
) -> DenseBatch:
    """The tokens of each held slot beside each other, in the order of held."""
    groups = _by_slot(token_slots, held)
    tokens = [token for group in groups for token in group]
    most = max(map(len, groups))
    is_even = 0 < most * len(groups) <= 2 * len(tokens)
    width = most if is_even else 0
    # The rows of some token fill up a group; nobody reads what comes of them.
    filled = [group + tokens[:1] * (width - len(group)) for group in groups]
    source = [token for group in filled for token in group]
    places = [g * width + i for g, group in enumerate(groups) for i in range(len(group))]
    return DenseBatch(
        rows,
        source=torch.tensor(source, dtype=torch.int64),
        tokens=torch.tensor(tokens, dtype=torch.int64),
        places=None if len(source) == len(tokens) else torch.tensor(places),
        counts=tuple(map(len, filled)),
        is_even=is_even,
        is_in_order=source == list(range(len(token_slots))),
        num_tokens=len(token_slots),
    )


def _by_slot(token_slots: list[int], held: Mapping[int, Hashable]) -> list[list[int]]:
    of_slot: dict[int, list[int]] = {slot: [] for slot in held}
    for token, slot in enumerate(token_slots):
        if slot >= 0:
            of_slot[slot].append(token)
    return list(of_slot.values())


def _check_slots(token_slots: list[int], active: Mapping[int, Hashable], num_slots: int) -> None:
    missing = set(token_slots) - active.keys() - {-1}
    expect(not missing, "slots of tokens", f"active ones {sorted(active)}", sorted(missing))
    is_slot = all(0 <= slot < num_slots for slot in active)
    expect(is_slot, "active slots", f"0 to {num_slots - 1}", sorted(active))


def _check_groups(weights: Sequence[LoraWeights]) -> None:
    expect(len(weights) > 0, "groups", "at least one", 0)
    rows = weights[0].a
    for group in weights:
        expect_shape("a", group.a, (rows.shape[0], "NS", rows.shape[2], "H"))
        expect_device("a", group.a, rows.device)
    columns = [w.column + s for w in weights for s in range(len(w.slice_sizes))]
    expect(len(set(columns)) == len(columns), "columns of groups", "each once", sorted(columns))


def _rows_there(batch: LoraBatch, slots: list[int], rows_per_page: int) -> torch.Tensor:
    """[G, R] bool: rows that each slot may read, to the end of the widest one's last page."""
    found = [readable_rows(batch, slot, rows_per_page)[0] for slot in slots]
    num_rows = max((int(rows.max()) + 1 for rows in found if rows.numel()), default=1)
    num_pages = -(-num_rows // rows_per_page)
    is_there = torch.zeros(len(found), num_pages * rows_per_page, dtype=torch.bool)
    for there, rows in zip(is_there, found, strict=True):
        there[rows] = True
    return is_there


def _gather_rows(
    weights: LoraWeights,
    pages: torch.Tensor,
    is_there: torch.Tensor,
    scales: torch.Tensor,
    room: torch.Tensor,
) -> DenseRows:
    """pages [G · pages of the widest]; is_there [G, R]: rows to read; room: for all elements."""
    _, num_slices, rows_per_page, hidden = weights.a.shape
    num_groups, num_rows = is_there.shape
    a_room, b_room = room.tensor_split([num_groups * hidden * num_slices * num_rows])
    a_rows = a_room.view(num_groups, hidden, num_slices, num_rows)
    # [G, pages, NS, PR, H] → [G, H, NS, pages, PR]
    found = weights.a.index_select(0, pages).view(num_groups, -1, *weights.a.shape[1:])
    a_rows.view(*a_rows.shape[:3], -1, rows_per_page).copy_(found.permute(0, 4, 2, 1, 3))
    width = math.gcd(*weights.slice_sizes)
    b_rows = b_room.view(num_groups, -1, num_rows, width)
    found = weights.b.index_select(0, pages).view(num_groups, num_rows, -1, width)
    b_rows.copy_(found.transpose(1, 2))
    scale = scales[:, weights.column : weights.column + num_slices]  # [G, NS]
    a_rows.mul_(scale[:, None, :, None])
    if not bool(is_there.all()):
        a_rows.masked_fill_(~is_there[:, None, None, :], 0.0)
        b_rows.masked_fill_(~is_there[:, None, :, None], 0.0)
    counts = torch.tensor([size // width for size in weights.slice_sizes])
    slices = torch.arange(num_slices).repeat_interleave(counts) if len(b_rows[0]) > 1 else None
    return DenseRows(a_rows.view(num_groups, hidden, num_slices * num_rows), b_rows, slices)


_MISSING = object()
