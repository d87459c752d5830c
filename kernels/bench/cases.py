"""What LoRA over one projection group is timed on, for our kernels and the peers' alike.

Sets of distinct inputs are walked in turn, so many that none is found in the L2 cache when it is
used again, as in a step: there the other layers' weights pass between two uses.
"""

from dataclasses import dataclass
from functools import cache

import torch

from kernels.bench.workloads import Group, Pool, make_pool
from kernels.lora.table import MAX_DECODE_TOKENS

# Llama-3.1-8B's projection groups.
LAYER = {
    "qkv": Group(4096, (4096, 1024, 1024)),
    "o": Group(4096, (4096,)),
    "gate_up": Group(4096, (14336, 14336)),
    "down": Group(14336, (4096,)),
}
# Table A: tokens, distinct adapters.
POINTS = ((1, 1), (64, 1), (64, 16), (64, 64), (256, 16), (256, 64), (256, 256), (2048, 4))
RANKS = (8, 16, 32, 64)
GRID_TOKENS = (1, 8, 32, 64, 128, 256)
GRID_ADAPTERS = (1, 4, 16, 64)

# Nearly three times the L2 cache of an H200.
ROTATED_BYTES = 160 * 2**20
MAX_SETS, MAX_PAIRS = 512, 64

# The engine's: rank rows of a page, and what an adapter's page table has room for.
ROWS_PER_PAGE, MAX_RANK = 8, 64


@dataclass(frozen=True)
class Point:
    """One projection group, the rank of its adapters, tokens and distinct adapters of a batch."""

    projection: str
    rank: int
    num_tokens: int
    num_adapters: int

    @property
    def group(self) -> Group:
        return LAYER[self.projection]

    @property
    def is_decode(self) -> bool:
        return self.num_tokens <= MAX_DECODE_TOKENS


@dataclass(frozen=True)
class Case:
    """Inputs by set; everything bf16 on CUDA but for tests.

    a [sets, S, NS·R, H], b [sets, S, N, R]: as the peers keep them; x [sets, T, H], y [sets, T, N].
    token_slot [T] int32 on the CPU: every slot is used.
    """

    group: Group
    rank: int
    a: torch.Tensor
    b: torch.Tensor
    x: torch.Tensor
    y: torch.Tensor
    token_slot: torch.Tensor
    is_decode: bool

    @property
    def num_sets(self) -> int:
        return self.x.shape[0]


def grid(ranks: tuple[int, ...] = RANKS) -> list[Point]:
    """Projections × ranks × tokens × adapters, where adapters are 1, 4, 16, 64 and one a token."""
    return [
        Point(projection, rank, num_tokens, num_adapters)
        for rank in ranks
        for projection in LAYER
        for num_tokens in GRID_TOKENS
        for num_adapters in sorted({min(n, num_tokens) for n in (*GRID_ADAPTERS, num_tokens)})
    ]


def floor_bytes(group: Group, rank: int, num_tokens: int, num_adapters: int) -> int:
    """A and B of each adapter once, x once, y once, in two-byte elements."""
    num_slices, width = len(group.slice_sizes), sum(group.slice_sizes)
    adapters = num_adapters * rank * (num_slices * group.hidden + width)
    return 2 * (adapters + num_tokens * (group.hidden + width))


def num_sets(point: Point) -> int:
    size = floor_bytes(point.group, point.rank, point.num_tokens, point.num_adapters)
    return max(2, min(MAX_SETS, -(-ROTATED_BYTES // size)))


def make_case(
    point: Point,
    sets: int | None = None,
    *,
    group: Group | None = None,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda",
) -> Case:
    """sets, group: in place of the point's own."""
    sets, group = sets or num_sets(point), group or point.group
    hidden, width, num_slots = group.hidden, sum(group.slice_sizes), point.num_adapters
    shape_a = (sets, num_slots, len(group.slice_sizes) * point.rank, hidden)
    a, b, x, y = (
        torch.empty(shape, dtype=dtype, device=device).normal_(0, deviation)
        for shape, deviation in (
            (shape_a, hidden**-0.5),
            ((sets, num_slots, width, point.rank), 0.1),
            ((sets, point.num_tokens, hidden), 1.0),
            ((sets, point.num_tokens, width), 1.0),
        )
    )
    return Case(group, point.rank, a, b, x, y, token_slots(point), point.is_decode)


def token_slots(point: Point) -> torch.Tensor:
    """[T] int32. Decode steps arrive in any order, prefills as runs of one adapter."""
    if not point.is_decode:
        each = point.num_tokens // point.num_adapters
        return torch.arange(point.num_adapters, dtype=torch.int32).repeat_interleave(each)
    order = torch.randperm(point.num_tokens, generator=torch.Generator().manual_seed(1))
    return (torch.arange(point.num_tokens, dtype=torch.int32) % point.num_adapters)[order]


@cache
def base_weights(group: Group) -> torch.Tensor:
    """[sets, N, H] bf16 on CUDA: sets of the base matmul's weight to rotate through."""
    width = sum(group.slice_sizes)
    sets = max(2, -(-ROTATED_BYTES // (2 * width * group.hidden)))
    shape = (sets, width, group.hidden)
    weights = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
    return weights.normal_(0, group.hidden**-0.5)


def paged(case: Case) -> Pool:
    """The case's adapters on shuffled pages of a pool whose columns are the sets; scales are 1."""
    num_slots = case.a.shape[1]
    pool = make_pool(
        [case.group] * case.num_sets,
        case.token_slot.tolist(),
        [case.rank] * num_slots,
        rows_per_page=ROWS_PER_PAGE,
        max_rank=MAX_RANK,
        dtype=case.a.dtype,
        device=str(case.a.device),
    )
    pool.batch.scales.fill_(1.0)
    num_pages = case.rank // ROWS_PER_PAGE
    pages = pool.batch.page_table[:, :num_pages].flatten().long()
    for i, weights in enumerate(pool.weights):
        a = case.a[i].view(num_slots, -1, num_pages, ROWS_PER_PAGE, case.group.hidden)
        weights.a[pages] = a.transpose(1, 2).flatten(0, 1)
        weights.b[pages] = case.b[i].transpose(1, 2).reshape(len(pages), ROWS_PER_PAGE, -1)
    return pool


def reference(case: Case, i: int = 0) -> torch.Tensor:
    """What LoRA adds to y in set i: [T, N] fp32, adapter by adapter."""
    delta = torch.zeros_like(case.y[i], dtype=torch.float32)
    for slot in sorted(set(case.token_slot.tolist())):
        tokens = (case.token_slot == slot).nonzero()[:, 0].to(delta.device)
        hidden = case.x[i, tokens].float() @ case.a[i, slot].float().T
        h = torch.split_with_sizes(hidden, [case.rank] * len(case.group.slice_sizes), dim=1)
        parts = torch.split_with_sizes(case.b[i, slot].float(), case.group.slice_sizes)
        delta[tokens] = torch.cat([h[s] @ part.T for s, part in enumerate(parts)], dim=1)
    return delta
