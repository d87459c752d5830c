"""What the LoRA ops read: one projection group's weights, and which token uses which adapter."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kernels.contract import (
    FLOATS,
    expect,
    expect_contiguous,
    expect_device,
    expect_dtype,
    expect_shape,
)
from kernels.lora.sizes import PlanSizes

# Of a projection group: q, k and v.
MAX_SLICES = 3


@dataclass(frozen=True)
class LoraWeights:
    """One (layer, projection group): views of the page pool. Made once; the bytes behind change.

    a [NP, NS, PR, H]: rank rows of A, one block a slice. b [NP, PR, N]: rank rows of Bᵀ, all slices
    side by side. Any stride between pages; the last dimension is contiguous. Rows must be finite.
    On CUDA PR is a power of two, at most 128.
    slice_sizes: NS widths of the group's slices, at most three; their sum is N.
    column: the first slice's column in LoraBatch.scales; slice s has column + s.
    row_scales [NP, NS, PR] fp32, contiguous: with rows stored in float8_e4m3fn, what the product of
    a row of A and its row of B, slice by slice, is multiplied by (fp8.quantize_rows gives both
    factors).
    """

    a: torch.Tensor
    b: torch.Tensor
    slice_sizes: tuple[int, ...]
    column: int
    row_scales: torch.Tensor | None = None

    def __post_init__(self) -> None:
        num_pages, num_slices, rows_per_page, _ = _four(self.a)
        self._check_scales()
        expect(1 <= num_slices <= MAX_SLICES, "slices of a", f"1 to {MAX_SLICES}", num_slices)
        expect_dtype("b", self.b, self.a.dtype)
        expect_device("b", self.b, self.a.device)
        expect(
            len(self.slice_sizes) == num_slices,
            "number of slice_sizes",
            num_slices,
            len(self.slice_sizes),
        )
        expect_shape("b", self.b, (num_pages, rows_per_page, sum(self.slice_sizes)))
        expect(self.a.stride(3) == 1, "a's last stride", 1, self.a.stride(3))
        expect(self.b.stride(2) == 1, "b's last stride", 1, self.b.stride(2))
        expect(self.column >= 0, "column", "at least 0", self.column)

    def _check_scales(self) -> None:
        """What belongs to rows in fp8, and to no others."""
        if self.row_scales is None:
            expect_dtype("a", self.a, *FLOATS)
            return
        expect_dtype("a with row_scales", self.a, torch.float8_e4m3fn)
        expect_shape("row_scales", self.row_scales, tuple(self.a.shape[:3]))
        expect_dtype("row_scales", self.row_scales, torch.float32)
        expect_device("row_scales", self.row_scales, self.a.device)
        expect_contiguous("row_scales", self.row_scales)


@dataclass(frozen=True)
class DenseRows:
    """One group's gathered rank rows, of G adapters, zero beyond an adapter's rank.

    a_rows [G, H, NS·R], scaled, slice-major, so that one token reads them as they lie: 51 µs where
    [G, NS·R, H] took 77 (8 adapters, 576 × 48). b_rows [G, NB, R, W]: in NB blocks of columns as
    wide as all slices can be cut into, so that a token's slices are one batched matmul. slices
    [NB] int64: the slice of each block, None where NB is 1.
    """

    a_rows: torch.Tensor
    b_rows: torch.Tensor
    slices: torch.Tensor | None


@dataclass(frozen=True)
class DenseBatch:
    """A batch's tokens placed adapter by adapter, for the CPU. rows by column.

    source [places]: the token at each place; tokens [K]: those that have an adapter, places [K]:
    where they are, None for in this order. counts: places of each adapter; is_even: all the same.
    is_in_order: source is every token of the batch as they come, so nothing has to be placed.
    num_tokens: of the batch, T.
    """

    rows: Mapping[int, DenseRows]
    source: torch.Tensor
    tokens: torch.Tensor
    places: torch.Tensor | None
    counts: tuple[int, ...]
    is_even: bool
    is_in_order: bool
    num_tokens: int


@dataclass(frozen=True)
class TilePlan:
    """The Triton kernels' walk over one batch, on the device (plan.plan_tiles makes it).

    order [T] int32: tokens sorted by slot, those without adapter last; slots [T] int32: their slots
    in this order, -1 for none. A tile is sizes.tokens_per_tile tokens of it.
    entries [tiles, capacity] int64: the pages of the tile's adapters, slot by slot in rank order:
    page << 32 | slot << 16 | number of the page in its slot << 8 | readable rows, 0 for a page that
    the slot must not read, or that only fills up a slot's list to 16 rows. num_pages [tiles] int32
    of them are in use. sizes: of the batch it was made of.
    """

    order: torch.Tensor
    slots: torch.Tensor
    entries: torch.Tensor
    num_pages: torch.Tensor
    sizes: PlanSizes

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """In the order in which kernels take them."""
        return self.order, self.slots, self.entries, self.num_pages


@dataclass(frozen=True)
class LoraBatch:
    """Who uses which adapter in one step. All tensors live on the device and are only read there,
    so one captured graph serves any mix; refill them in place. Contiguous; of scales, each row.

    token_slot [T] int32: the adapter slot of each token, -1 for none.
    page_table [S, max_pages] int32: the pages of each slot in rank order, -1 for none.
    ranks [S] int32: rank rows in use by each slot; 0 for an empty slot. A module of lower rank than
    its adapter has zero rows.
    scales [S, M] fp32: alpha/r (or its like) for each (layer, module) column.
    page_owner [NP] int32: the slot that owns each page, -1 for a free one. A page that the table
    names but its slot does not own is never read.
    dense, plan: what ActivePages.bind adds, on the CPU and on CUDA: this batch's, as it was then.
    """

    token_slot: torch.Tensor
    page_table: torch.Tensor
    ranks: torch.Tensor
    scales: torch.Tensor
    page_owner: torch.Tensor
    dense: DenseBatch | None = None
    plan: TilePlan | None = None

    def __post_init__(self) -> None:
        expect_shape("token_slot", self.token_slot, ("T",))
        expect_shape("page_table", self.page_table, ("S", "max_pages"))
        num_slots = self.page_table.shape[0]
        expect_shape("ranks", self.ranks, (num_slots,))
        expect_shape("scales", self.scales, (num_slots, "M"))
        expect_shape("page_owner", self.page_owner, ("NP",))
        for name in ("token_slot", "page_table", "ranks", "page_owner"):
            expect_dtype(name, getattr(self, name), torch.int32)
            expect_device(name, getattr(self, name), self.scales.device)
            expect_contiguous(name, getattr(self, name))
        expect_dtype("scales", self.scales, torch.float32)
        expect(self.scales.stride(1) == 1, "scales' last stride", 1, self.scales.stride(1))
        self._check_bound()

    def _check_bound(self) -> None:
        """Of this batch's sizes: ids on the device that fit one would reach outside of another."""
        device = self.scales.device
        if self.plan is not None:
            sizes = sizes_of(self, self.plan.sizes.rows_per_page)
            expect(self.plan.sizes == sizes, "sizes of the plan", sizes, self.plan.sizes)
            expect_device("plan", self.plan.order, device)
        if self.dense is not None:
            num_tokens, placed = len(self.token_slot), self.dense.num_tokens
            expect(placed == num_tokens, "tokens of the dense form", num_tokens, placed)
            expect_device("dense form", self.dense.source, device)


def sizes_of(batch: LoraBatch, rows_per_page: int) -> PlanSizes:
    """ValueError: the kernels' lists have no room for so many slots or pages, or for such pages."""
    num_tokens, (num_slots, max_pages) = batch.token_slot.shape[0], batch.page_table.shape
    return PlanSizes(num_tokens, num_slots, max_pages, rows_per_page, batch.page_owner.shape[0])


def _four(a: torch.Tensor) -> tuple[int, int, int, int]:
    expect_shape("a", a, ("NP", "NS", "PR", "H"))
    num_pages, num_slices, rows_per_page, hidden = a.shape
    return num_pages, num_slices, rows_per_page, hidden
