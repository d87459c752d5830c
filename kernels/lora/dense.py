"""The dense masked form: every token meets the rows of all active adapters, a mask keeps its own.

Two matmuls for the whole batch instead of one per adapter; the fastest form on the CPU. The rows
are copied out of the pool once and kept while the same adapters are active.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

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
        self._owner = torch.empty(0, dtype=torch.int32)
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
        missing = set(batch.token_slot.tolist()) - active.keys() - {-1}
        expect(not missing, "slots of tokens", f"active ones {sorted(active)}", sorted(missing))
        num_slots = batch.page_table.shape[0]
        is_slot = all(0 <= slot < num_slots for slot in active)
        expect(is_slot, "active slots", f"0 to {num_slots - 1}", sorted(active))
        if not active or any(weights.row_scales is not None for weights in self._weights):
            return batch
        if not self._serves(batch, active):
            self._gather(batch, active)
        hidden = batch.token_slot[:, None, None] != self._owner
        return replace(batch, dense=DenseBatch(self._rows, hidden))

    def _serves(self, batch: LoraBatch, active: Mapping[int, Hashable]) -> bool:
        if any(self._held.get(slot, _MISSING) != version for slot, version in active.items()):
            return False
        wanted = int(batch.ranks[list(active)].sum())
        return self._owner.shape[0] <= 4 * wanted

    def _gather(self, batch: LoraBatch, active: Mapping[int, Hashable]) -> None:
        rows_per_page = self._weights[0].a.shape[2]
        found = {slot: readable_rows(batch, slot, rows_per_page) for slot in sorted(active)}
        pages = torch.cat([pages for _, pages, _ in found.values()])
        places = torch.cat([places for _, _, places in found.values()])
        slots = [
            torch.full_like(rows, slot, dtype=torch.int32) for slot, (rows, _, _) in found.items()
        ]
        self._owner = torch.cat(slots)
        scales = batch.scales[self._owner.long()]  # [RA, M]
        kept, position = torch.unique_consecutive(pages, return_inverse=True)
        used = position * rows_per_page + places
        rows = None if used.shape[0] == kept.shape[0] * rows_per_page else used
        self._rows = {w.column: _gather_rows(w, kept, rows, scales) for w in self._weights}
        self._held = dict(active)


def dense_shrink(x: torch.Tensor, weights: LoraWeights, dense: DenseBatch) -> torch.Tensor:
    """Semantics: h = mask(A x). x [T, H] → [T, NS, RA] of x's dtype."""
    rows = dense.rows[weights.column]
    h = F.linear(x, rows.a_rows).view(x.shape[0], len(weights.slice_sizes), -1)
    # Filled, not multiplied by zero: one adapter's overflow must not reach another's tokens.
    return h.masked_fill_(dense.hidden, 0.0)


def dense_expand(y: torch.Tensor, h: torch.Tensor, weights: LoraWeights, dense: DenseBatch) -> None:
    """Semantics: y += h B, in place. y [T, N]; h as dense_shrink returns it."""
    rows, start = dense.rows[weights.column], 0
    for s, size in enumerate(weights.slice_sizes):
        y.narrow(1, start, size).addmm_(h[:, s], rows.b_rows.narrow(1, start, size))
        start += size


def _check_groups(weights: Sequence[LoraWeights]) -> None:
    expect(len(weights) > 0, "groups", "at least one", 0)
    rows = weights[0].a
    for group in weights:
        expect_shape("a", group.a, (rows.shape[0], "NS", rows.shape[2], "H"))
        expect_device("a", group.a, rows.device)
    columns = [w.column + s for w in weights for s in range(len(w.slice_sizes))]
    expect(len(set(columns)) == len(columns), "columns of groups", "each once", sorted(columns))


def _gather_rows(
    weights: LoraWeights, pages: torch.Tensor, rows: torch.Tensor | None, scales: torch.Tensor
) -> DenseRows:
    """rows: which of the pages' rows are in use, None when all are. Whole pages copy fastest."""
    num_slices, hidden = weights.a.shape[1], weights.a.shape[3]
    a_rows = weights.a.index_select(0, pages).transpose(0, 1).reshape(num_slices, -1, hidden)
    b_rows = weights.b.index_select(0, pages).flatten(0, 1)  # [RA, N]
    if rows is not None:
        a_rows, b_rows = a_rows.index_select(1, rows), b_rows.index_select(0, rows)
    scale = scales[:, weights.column : weights.column + num_slices]  # [RA, NS]
    # A row of B that is not finite would turn 0 · B into NaN for every token: keep it its owner's.
    finite = torch.isfinite(b_rows.sum(dim=1, dtype=torch.float32))
    if not bool(finite.all()):
        scale = scale.masked_fill(~finite[:, None], float("nan"))
        b_rows = torch.nan_to_num(b_rows, nan=0.0, posinf=0.0, neginf=0.0)
    return DenseRows(a_rows.mul_(scale.T[:, :, None]).view(-1, hidden), b_rows)


_MISSING = object()
