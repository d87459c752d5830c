"""The paged reference, the dense form and Triton, each against a loop over tokens in fp64."""

import dataclasses
from collections.abc import Callable

import pytest
import torch

from kernels.bench.workloads import WORKLOADS, Group, Pool, make_pool, slot_ranks, token_slots
from kernels.lora import (
    ActivePages,
    LoraBatch,
    LoraWeights,
    add_lora,
    expand,
    kernel,
    lora_linear,
    shrink,
)
from kernels.lora.plan import plan_tiles
from kernels.lora.table import ExpandBlocks, ShrinkBlocks
from tests.kernels.conftest import Target
from tests.kernels.tolerances import assert_close

QKV = Group(hidden=33, slice_sizes=(37, 5, 21))
DOWN = Group(hidden=530, slice_sizes=(139,))
NUM_SLOTS = 5

Add = Callable[[torch.Tensor, torch.Tensor, LoraWeights, LoraBatch], None]


def pool_for(workload: str, target: Target, num_tokens: int = 11, rank: int = 24) -> Pool:
    return make_pool(
        (QKV, DOWN),
        token_slots(workload, num_tokens, NUM_SLOTS),
        slot_ranks(workload, NUM_SLOTS, 64 if workload == "mixed-ranks" else rank),
        dtype=target.dtype,
        device=target.device,
    )


def inputs(pool: Pool, weights: LoraWeights) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, H] of about the size that makes a delta of order one, and a base output y [T, N]."""
    generator = torch.Generator().manual_seed(7)
    num_tokens, hidden = pool.batch.token_slot.shape[0], weights.a.shape[3]
    x = torch.randn(num_tokens, hidden, generator=generator) / hidden**0.5
    y = torch.randn(num_tokens, sum(weights.slice_sizes), generator=generator)
    return x.to(weights.a), y.to(weights.a)


def add_dense(y: torch.Tensor, x: torch.Tensor, weights: LoraWeights, batch: LoraBatch) -> None:
    active = {slot: f"digest-{slot}" for slot in batch.token_slot.tolist() if slot >= 0}
    add_lora(y, x, weights, ActivePages([weights]).bind(batch, active))


def add_triton(y: torch.Tensor, x: torch.Tensor, weights: LoraWeights, batch: LoraBatch) -> None:
    run_triton(y, x, weights, batch)


def run_triton(
    y: torch.Tensor,
    x: torch.Tensor,
    weights: LoraWeights,
    batch: LoraBatch,
    first: ShrinkBlocks | None = None,
    second: ExpandBlocks | None = None,
) -> None:
    """Poisoned in between: what the shrink does not write must not be read."""
    plan = plan_tiles(batch, weights.a.shape[2])
    h = kernel.new_shrunk(x, weights, batch, plan, first)
    h.shares.fill_(float("nan"))
    if h.listed is not None:
        h.listed.fill_(float("nan"))
    kernel.shrink(x, weights, batch, plan, h, first)
    kernel.expand(y, h, weights, plan, second)


def naive(y: torch.Tensor, x: torch.Tensor, weights: LoraWeights, batch: LoraBatch) -> torch.Tensor:
    """Token by token, row by row, in fp64 on the CPU."""
    result, rows_per_page = y.double().cpu(), weights.a.shape[2]
    a, b, x = weights.a.double().cpu(), weights.b.double().cpu(), x.double().cpu()
    for token, slot in enumerate(batch.token_slot.tolist()):
        for row in range(int(batch.ranks[slot]) if slot >= 0 else 0):
            page, place = int(batch.page_table[slot, row // rows_per_page]), row % rows_per_page
            start = 0
            for s, size in enumerate(weights.slice_sizes):
                h = float(batch.scales[slot, weights.column + s]) * (a[page, s, place] @ x[token])
                result[token, start : start + size] += h * b[page, place, start : start + size]
                start += size
    return result


CPU = Target("cpu", torch.float32)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_reference_equals_the_loop_over_tokens(workload: str) -> None:
    pool = pool_for(workload, CPU)
    for weights in pool.weights:
        x, y = inputs(pool, weights)
        want = naive(y, x, weights, pool.batch)
        add_lora(y, x, weights, pool.batch)
        assert_close(y, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_dense_equals_the_loop_over_tokens(workload: str, dtype: torch.dtype) -> None:
    pool = pool_for(workload, Target("cpu", dtype))
    for weights in pool.weights:
        x, y = inputs(pool, weights)
        want = naive(y, x, weights, pool.batch)
        add_dense(y, x, weights, pool.batch)
        assert_close(y, want)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_triton_equals_the_loop_over_tokens(workload: str, target: Target) -> None:
    pool = pool_for(workload, target, num_tokens=7)
    weights = pool.weights[0]
    x, y = inputs(pool, weights)
    want = naive(y, x, weights, pool.batch)
    add_triton(y, x, weights, pool.batch)
    assert_close(y, want)


def test_triton_sums_over_parts_of_a_long_input(target: Target) -> None:
    pool = pool_for("uniform", target, num_tokens=4)
    weights = pool.weights[1]
    x, y = inputs(pool, weights)
    want = naive(y, x, weights, pool.batch)
    add_triton(y, x, weights, pool.batch)
    assert_close(y, want)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ShrinkBlocks(16, 32, 3, 7), ExpandBlocks(16, 16)),
        (ShrinkBlocks(32, 64, 1, 40), ExpandBlocks(32, 64)),
    ],
)
def test_triton_in_other_blocks(first: ShrinkBlocks, second: ExpandBlocks, target: Target) -> None:
    pool = pool_for("mixed-ranks", target, num_tokens=40)
    weights = pool.weights[0]
    x, y = inputs(pool, weights)
    want = naive(y, x, weights, pool.batch)
    run_triton(y, x, weights, pool.batch, first, second)
    assert_close(y, want)


@pytest.mark.parametrize("num_tokens", [1, 17, 300, 1100])
def test_triton_at_other_token_counts(num_tokens: int, target: Target) -> None:
    pool = make_pool(
        (Group(16, (16, 8)),),
        token_slots("skewed", num_tokens, 2),
        [1, 9],
        rows_per_page=4,
        max_rank=12,
        dtype=target.dtype,
        device=target.device,
    )
    x, y = inputs(pool, pool.weights[0])
    want = naive(y, x, pool.weights[0], pool.batch)
    add_triton(y, x, pool.weights[0], pool.batch)
    assert_close(y, want)


def test_shrink_and_expand_apart_equal_the_whole() -> None:
    pool = pool_for("mixed-ranks", CPU)
    weights = pool.weights[0]
    x, y = inputs(pool, weights)
    whole = y.clone()
    add_lora(whole, x, weights, pool.batch)
    expand(y, shrink(x, weights, pool.batch), weights, pool.batch)
    assert torch.equal(y, whole)


BACKENDS = {
    "reference": (add_lora, "cpu"),
    "dense": (add_dense, "cpu"),
    "triton": (add_triton, "cuda" if torch.cuda.is_available() else "cpu"),
}


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> tuple[Add, str]:
    return BACKENDS[request.param]


def test_tokens_without_adapter_keep_their_bits(backend: tuple[Add, str]) -> None:
    add, device = backend
    pool = pool_for("one-token", Target(device, torch.float32))
    x, y = inputs(pool, pool.weights[0])
    before = y.clone()
    add(y, x, pool.weights[0], pool.batch)
    base = pool.batch.token_slot == -1
    assert torch.equal(y[base], before[base])
    assert not torch.equal(y[~base], before[~base])


@pytest.mark.parametrize("page", ["foreign", "free", "past the pool", -7, 2**31 - 1])
def test_a_stale_page_is_never_read(page: str | int, backend: tuple[Add, str]) -> None:
    """Slot 0's second page is stale: the answer is that of its first one and nobody else's."""
    add, device = backend
    pool = pool_for("identical", Target(device, torch.float32), num_tokens=3, rank=16)
    batch, weights = pool.batch, pool.weights[0]
    named: dict[str | int, int] = {
        "foreign": int(batch.page_table[1, 0]),
        "free": int((batch.page_owner == -1).nonzero()[0]),
        "past the pool": batch.page_owner.shape[0],
    }
    table, ranks = batch.page_table.clone(), batch.ranks.clone()
    table[0, 1] = page if isinstance(page, int) else named[page]
    ranks[0] = 8
    x, y = inputs(pool, weights)
    want = naive(y, x, weights, dataclasses.replace(batch, ranks=ranks))
    add(y, x, weights, dataclasses.replace(batch, page_table=table))
    assert_close(y, want)


def test_pages_of_an_unloaded_adapter_are_never_read(backend: tuple[Add, str]) -> None:
    """Slot 0's pages went to slot 1, its table was not cleaned: its tokens get no one's rows."""
    add, device = backend
    pool = pool_for("identical", Target(device, torch.float32), num_tokens=3)
    owner = pool.batch.page_owner.where(pool.batch.page_owner != 0, 1)
    x, y = inputs(pool, pool.weights[0])
    before = y.clone()
    add(y, x, pool.weights[0], dataclasses.replace(pool.batch, page_owner=owner))
    assert torch.equal(y, before)


def test_linear_is_the_base_matmul_with_lora() -> None:
    pool = pool_for("uniform", CPU)
    weights = pool.weights[0]
    x, bias = inputs(pool, weights)
    weight = torch.randn(sum(weights.slice_sizes), x.shape[1])
    want = naive(x @ weight.T + bias[0], x, weights, pool.batch)
    assert_close(lora_linear(x, weight, weights, pool.batch, bias[0]), want)
    with pytest.raises(ValueError, match=r"weight: expected shape \[63, 33\], got \[62, 33\]"):
        lora_linear(x, weight[1:], weights, pool.batch)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("side", ["x", "a", "b"])
def test_one_adapters_overflow_stays_its_own(
    side: str, value: float, backend: tuple[Add, str]
) -> None:
    add, device = backend
    if add is add_triton and side == "b" and value != 3e38:
        pytest.skip("rows of B are finite: the loader refuses others (LoraWeights)")
    pool = pool_for("distinct", Target(device, torch.float32), num_tokens=4, rank=8)
    weights, batch = pool.weights[0], pool.batch
    x, y = inputs(pool, weights)
    want = naive(y, x, weights, batch)
    if side == "x":
        x[2] = value
    else:
        getattr(weights, side)[int(batch.page_table[2, 0])] = value
    add(y, x, weights, batch)
    others = batch.token_slot != 2
    assert_close(y[others], want[others.cpu()])
    assert not torch.allclose(y[~others].cpu().double(), want[~others.cpu()])


def test_the_same_inputs_give_the_same_bits(backend: tuple[Add, str]) -> None:
    add, device = backend
    pool = pool_for("mixed-ranks", Target(device, torch.float32), num_tokens=5)
    # The group whose input is long enough to be summed in parts.
    weights = pool.weights[1]
    x, y = inputs(pool, weights)
    first, second = y.clone(), y.clone()
    add(first, x, weights, pool.batch)
    add(second, x, weights, pool.batch)
    assert torch.equal(first, second)


@pytest.mark.parametrize("rank", [1, 8, 20])
def test_other_company_leaves_the_bits(rank: int, target: Target) -> None:
    """Token 3's answer, whoever decodes beside it: before and after it, of other ranks, or none.

    Tensor cores sum 16 rows at a time; numpy, in the interpreter, promises no order.
    """
    if target.device == "cpu":
        pytest.skip("needs tensor cores")
    companies = ([3] * 11, [0, 1, 2, 3, 4, 0, 1, 2, 4, 4, -1], [-1, 4, -1, 3, 4, 4, 4, 4, 4, 4, 4])
    answers = []
    for slots in companies:
        ranks = [8, 24, 3, rank, 40]
        pool = make_pool((DOWN,), slots, ranks, dtype=target.dtype, device=target.device)
        weights = pool.weights[0]
        x, y = inputs(pool, weights)
        add_triton(y, x, weights, pool.batch)
        answers.append(y[3])
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])
