"""A batch of adapters, shrunk and expanded in fp64, for the tests of the folded ops."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

import kernels.folded
from kernels.bench.workloads import Group, Pool, make_pool, slot_ranks, token_slots
from kernels.lora import Shrunk, kernel
from kernels.lora.plan import plan_tiles
from kernels.lora.table import MAX_MIXED_TOKENS
from tests.kernels.conftest import Target

Op = Callable[..., torch.Tensor]

EPS = 1e-5
MAX_RANK, ROWS_PER_PAGE, NUM_SLOTS = 24, 8, 5


def drawn(target: Target, *shape: int, seed: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(target.device, target.dtype)


def make_batch(name: str, num_tokens: int, sizes: tuple[int, ...], target: Target) -> Pool:
    return make_pool(
        [Group(8, sizes)],
        token_slots(name, num_tokens, NUM_SLOTS),
        slot_ranks(name, NUM_SLOTS, 16),
        rows_per_page=ROWS_PER_PAGE,
        max_rank=MAX_RANK,
        dtype=target.dtype,
        device=target.device,
    )


def shrunk(pool: Pool, target: Target, num_shares: int) -> torch.Tensor:
    """h [P, T, NS, max_rank] as shrink leaves it: a token's own rows, NaN past their last page."""
    batch, num_slices = pool.batch, len(pool.weights[0].slice_sizes)
    shape = (num_shares, len(batch.token_slot), num_slices, MAX_RANK)
    h = drawn(replace(target, dtype=torch.float32), *shape)
    for token, slot in enumerate(batch.token_slot.tolist()):
        rank = int(batch.ranks[slot]) if slot >= 0 else 0
        h[:, token, :, rank : -(-rank // ROWS_PER_PAGE) * ROWS_PER_PAGE] = 0.0
        h[:, token, :, -(-rank // ROWS_PER_PAGE) * ROWS_PER_PAGE :] = float("nan")
    return h if num_shares > 1 else h.to(target.dtype)


def expanded(y: torch.Tensor, h: torch.Tensor, pool: Pool) -> torch.Tensor:
    """y + h B in fp64 on the CPU, token by token and row by row."""
    batch, weights = pool.batch, pool.weights[0]
    out, wide_h, wide_b = y.double().cpu(), h.double().sum(0).cpu(), weights.b.double().cpu()
    table, ranks = batch.page_table.tolist(), batch.ranks.tolist()
    for token, slot in enumerate(batch.token_slot.tolist()):
        for row in range(ranks[slot] if slot >= 0 else 0):
            values = wide_b[table[slot][row // ROWS_PER_PAGE], row % ROWS_PER_PAGE]
            start = 0
            for i_slice, size in enumerate(weights.slice_sizes):
                columns = slice(start, start + size)
                out[token, columns] += wide_h[token, i_slice, row] * values[columns]
                start += size
    return out


def triton_op(name: str, target: Target) -> Op:
    """The public call launches on CUDA; the interpreter is reached beneath it, with a plan."""
    if target.device == "cuda":
        op: Op = getattr(kernels.folded, name)
        return op
    from kernels.folded import norm_kernel, rope_kernel, silu_kernel

    if name == "expand_add_rms_norm":
        return lambda x, residual, h, weights, batch, *rest: norm_kernel.expand_add_rms_norm(
            x, residual, h, weights, plan_tiles(batch, ROWS_PER_PAGE), *rest
        )
    if name == "expand_silu_mul":
        return lambda y, h, weights, batch, dtype=None: silu_kernel.expand_silu_mul(
            y, h, weights, plan_tiles(batch, ROWS_PER_PAGE), dtype or y.dtype
        )
    return lambda y, h, weights, batch, *rest, **options: rope_kernel.expand_rope_kv_write(
        y, h, weights, plan_tiles(batch, ROWS_PER_PAGE), *rest, *options.values()
    )


def listed(h: torch.Tensor, pool: Pool, dtype: torch.dtype) -> Shrunk:
    """The shares in the order of the lists, by the kernel, poisoned where it writes nothing."""
    plan = plan_tiles(pool.batch, ROWS_PER_PAGE)
    shape = (plan.sizes.num_tiles, h.shape[2], plan.sizes.block_tokens, plan.sizes.max_rows)
    rows = h.new_full(shape, float("nan")).to(dtype)
    if h.shape[1]:
        kernel.list_rows(h, plan, ROWS_PER_PAGE, rows)
    return Shrunk(h, pool.weights[0].column, rows)


@dataclass(frozen=True)
class Form:
    """How the inputs come. listed: h in the order of the lists; h_shares: of h; shares: of the
    base output."""

    listed: bool = True
    h_shares: int = 3
    shares: int = 0

    def h(self, h: torch.Tensor, pool: Pool, target: Target) -> Shrunk:
        return listed(h, pool, target.dtype) if self.listed else Shrunk(h, 0)

    def y(self, y: torch.Tensor) -> torch.Tensor:
        if not self.shares:
            return y
        pieces = torch.randn(self.shares, *y.shape, device=y.device)
        pieces[0] += y.float() - pieces.sum(0)
        return pieces


def whole(y: torch.Tensor) -> torch.Tensor:
    return y.double().sum(0) if y.dim() == 3 else y


DECODE, ON_CPU, SHARES = Form(), Form(listed=False), Form(shares=3)
# One share of h, in the order that shrink leaves it.
PREFILL = Form(listed=False, h_shares=1)


def form_of(num_tokens: int) -> Form:
    """What shrink returns on CUDA."""
    return DECODE if num_tokens <= MAX_MIXED_TOKENS else PREFILL
