"""Adapter weights as rank pages: a page's layout, the device's pool of pages, one step's batch.

A page holds ROWS_PER_PAGE rank rows of every (layer, group): A [NS, PR, in] and B transposed
[PR, out] beside each other, so that a load is a few large contiguous copies. Views of the pool,
made once, are what the kernels read.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from inference.lora_timer import Clock, cuda_span, is_sampled
from inference.model_spec import ModelSpec
from inference.page_set import runs_of
from inference.transfer import to_device
from kernels.lora import ActivePages, LoraBatch, LoraWeights, add_lora

ROWS_PER_PAGE = 8
# Of one copy to the device: a step's own small copies queue behind the one at work, and 4 MiB take
# 0.1 ms; a whole adapter would hold a step up for milliseconds.
COPY_ELEMENTS = 2 << 20

# A fused projection is one group; its slices are the modules that adapters name.
GROUPS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
GROUP_NAMES = tuple(GROUPS)
NUM_COLUMNS = sum(map(len, GROUPS.values()))


@dataclass(frozen=True)
class Group:
    """Where a (layer, group) lies in a page, in elements. column: its first slice's scale."""

    modules: tuple[str, ...]
    num_in: int
    slice_sizes: tuple[int, ...]
    a_start: int
    b_start: int
    column: int

    @property
    def end(self) -> int:
        return self.b_start + ROWS_PER_PAGE * sum(self.slice_sizes)

    def views(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """pages [NP, elements] → A [NP, NS, PR, in], B [NP, PR, out], both views."""
        a = pages[:, self.a_start : self.b_start]
        b = pages[:, self.b_start : self.end]
        # A view of some columns keeps its rows' stride; the inner dimensions are contiguous.
        num_pages = pages.shape[0]
        return (
            a.view(num_pages, len(self.modules), ROWS_PER_PAGE, self.num_in),
            b.view(num_pages, ROWS_PER_PAGE, sum(self.slice_sizes)),
        )


@dataclass(frozen=True)
class PageLayout:
    """groups: layer by layer, in GROUPS' order. num_columns: LoRA modules of the model."""

    groups: tuple[Group, ...]
    page_elements: int
    num_columns: int

    @classmethod
    def of(cls, spec: ModelSpec) -> "PageLayout":
        groups: list[Group] = []
        start = column = 0
        shapes = spec.projections()
        for layer in range(spec.num_layers):
            for names in GROUPS.values():
                num_in = shapes[names[0]][0]
                sizes = tuple(shapes[name][1] for name in names)
                modules = tuple(f"model.layers.{layer}.{name}" for name in names)
                b_start = start + len(names) * ROWS_PER_PAGE * num_in
                groups.append(Group(modules, num_in, sizes, start, b_start, column))
                start, column = groups[-1].end, column + len(names)
        return cls(tuple(groups), start, column)


def num_pages_for(rank: int) -> int:
    return -(-rank // ROWS_PER_PAGE)


@dataclass(frozen=True)
class PackedAdapter:
    """An adapter in the page layout, in host memory.

    spans: its pages in rank order, [n, page_elements] of the serving dtype for n that lie side by
    side, zero where no rank row is; scales: by column; groups: indices into PageLayout.groups of
    those it changes.
    """

    digest: str
    rank: int
    spans: tuple[torch.Tensor, ...]
    scales: tuple[float, ...]
    groups: frozenset[int]


class LoraPool:
    """The device's pages and the tables by slot. Who owns which page is AdapterPool's to say."""

    def __init__(
        self,
        spec: ModelSpec,
        num_pages: int,
        max_rank: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layout = PageLayout.of(spec)
        self.pages = torch.zeros(num_pages, self.layout.page_elements, dtype=dtype, device=device)
        self.weights = [
            LoraWeights(*group.views(self.pages), group.slice_sizes, group.column)
            for group in self.layout.groups
        ]
        self._active = ActivePages(self.weights)
        self._num_steps = 0
        self._digests: dict[int, str] = {}
        self._groups: dict[int, frozenset[int]] = {}
        table_shape = (num_pages, num_pages_for(max_rank))
        self._page_table = torch.full(table_shape, -1, dtype=torch.int32, device=device)
        self._ranks = torch.zeros(num_pages, dtype=torch.int32, device=device)
        self._page_owner = torch.full((num_pages,), -1, dtype=torch.int32, device=device)
        self._scales = torch.zeros(num_pages, self.layout.num_columns, device=device)

    def place(self, slot: int, pages: Sequence[int], adapter: PackedAdapter) -> None:
        """Copies the adapter to its pages, whole, so that nothing of a former owner is left.

        On CUDA this is queued on the current stream, which is not waited for.
        """
        for source, first in _runs(adapter.spans, pages):
            target = self.pages[first : first + len(source)].view(-1)
            parts = torch.split(source.view(-1), COPY_ELEMENTS)
            for room, part in zip(torch.split(target, COPY_ELEMENTS), parts, strict=True):
                room.copy_(part, non_blocking=True)
        table, device = self._page_table[slot], self.pages.device
        row = [*pages, *[-1] * (len(table) - len(pages))]
        table.copy_(to_device(row, device, torch.int32))
        self._page_owner.index_fill_(0, to_device(pages, device), slot)
        self._ranks[slot].fill_(adapter.rank)
        self._scales[slot].copy_(to_device(adapter.scales, device, torch.float32))
        self._digests[slot] = adapter.digest
        self._groups[slot] = adapter.groups

    def step(self, token_slots: torch.Tensor, slots: Iterable[int]) -> "LoraStep | None":
        """What one forward needs, None without adapters. token_slots [T] int32, -1 for none."""
        active: dict[int, Hashable] = {slot: self._digests[slot] for slot in slots}
        if not active:
            return None
        groups = frozenset[int]().union(*(self._groups[slot] for slot in active))
        return self._step(token_slots, active, groups)

    def step_of_any(self, token_slots: torch.Tensor) -> "LoraStep":
        """For adapters that are known on the device only: all groups. Capturable on CUDA."""
        active: dict[int, Hashable] = {}
        if token_slots.device.type == "cpu":
            active = {slot: self._digests[slot] for slot in token_slots.tolist() if slot >= 0}
        return self._step(token_slots, active, frozenset(range(len(self.weights))))

    def _step(
        self, token_slots: torch.Tensor, active: dict[int, Hashable], groups: frozenset[int]
    ) -> "LoraStep":
        clock = Clock()
        clock.start()
        tables = (self._page_table, self._ranks, self._scales, self._page_owner)
        batch = self._active.bind(LoraBatch(token_slots, *tables), active)
        clock.stop()
        return LoraStep(self.weights, batch, groups, clock)

    def measure(self, step: "LoraStep") -> Callable[[], float | None]:
        """The LoRA time in ms of a step that was launched, to be asked for once it has run; None
        when it was not measured (lora_timer.py).
        """
        if self.pages.device.type == "cpu":
            return lambda: step.clock.total_ms
        self._num_steps += 1
        if not is_sampled(self._num_steps):
            return lambda: None
        layer_ms = cuda_span(step.run_first_layer)
        return lambda: layer_ms() * (len(self.weights) / len(GROUP_NAMES))


def _runs(
    spans: Sequence[torch.Tensor], pages: Sequence[int]
) -> Iterator[tuple[torch.Tensor, int]]:
    """Stretches [n, page_elements] of the spans whose device pages lie side by side too, each with
    its first device page.
    """
    at = 0
    for span in spans:
        start = 0
        for first, end in runs_of(pages[at : at + len(span)]):
            yield span[start : start + end - first], first
            start += end - first
        at += len(span)
    assert at == len(pages), "an adapter has as many pages on the host as on the device"


@dataclass(frozen=True)
class LoraStep:
    """The LoRA side of one forward. groups: those that an active adapter changes.

    clock: of the ops that were called one by one, on the CPU.
    """

    weights: list[LoraWeights]
    batch: LoraBatch
    groups: frozenset[int]
    clock: Clock

    def weights_of(self, layer: int, group: int) -> LoraWeights | None:
        """None where no active adapter changes the group, an index into GROUP_NAMES."""
        index = layer * len(GROUP_NAMES) + group
        return self.weights[index] if index in self.groups else None

    def add(self, y: torch.Tensor, x: torch.Tensor, weights: LoraWeights) -> None:
        """y [T, out] += each token's adapter applied to x [T, in]."""
        self.clock.start()
        add_lora(y, x, weights, self.batch)
        self.clock.stop()

    def run_first_layer(self) -> None:
        """Its LoRA ops alone, for the clock; the result is dropped."""
        num_tokens = self.batch.token_slot.shape[0]
        for weights in self.weights[: len(GROUP_NAMES)]:
            x = weights.a.new_zeros(num_tokens, weights.a.shape[3])
            add_lora(weights.b.new_zeros(num_tokens, weights.b.shape[2]), x, weights, self.batch)
