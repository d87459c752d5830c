"""The gathered rows of the CPU's form: when they are kept, and when gathered anew."""

import dataclasses

import pytest
import torch

from kernels.bench.workloads import token_slots
from kernels.lora import ActivePages, add_lora
from tests.kernels.test_lora import CPU, NUM_SLOTS, inputs, naive, pool_for
from tests.kernels.tolerances import assert_close


def test_rows_are_kept_while_the_adapters_are_the_same() -> None:
    pool = pool_for("uniform", CPU)
    pages, versions = ActivePages(pool.weights), dict.fromkeys(range(NUM_SLOTS), "v1")
    first = pages.bind(pool.batch, versions).dense
    again = pages.bind(pool.batch, dict(versions)).dense
    assert first is not None and again is not None
    assert first.rows is again.rows
    fewer = token_slots("uniform", 11, 2)
    batch = dataclasses.replace(pool.batch, token_slot=torch.tensor(fewer, dtype=torch.int32))
    subset = pages.bind(batch, {0: "v1", 1: "v1"}).dense
    assert subset is not None and subset.rows is first.rows


def test_a_slot_with_new_content_is_gathered_anew() -> None:
    pool = pool_for("identical", CPU)
    weights, pages = pool.weights[0], ActivePages(pool.weights)
    pages.bind(pool.batch, {0: "old"})
    owned = pool.batch.page_owner == 0
    weights.a[owned] *= -2.0
    x, y = inputs(pool, weights)
    want = naive(y, x, weights, pool.batch)
    add_lora(y, x, weights, pages.bind(pool.batch, {0: "new"}))
    assert_close(y, want)


def test_a_token_whose_adapter_is_not_active_is_refused() -> None:
    pool = pool_for("distinct", CPU)
    with pytest.raises(
        ValueError, match=r"slots of tokens: expected active ones \[0, 1\], got \[2"
    ):
        ActivePages(pool.weights).bind(pool.batch, {0: "v", 1: "v"})


def test_unknown_workload_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected one of none, .* got zigzag"):
        token_slots("zigzag", 4, 2)


@pytest.mark.parametrize(
    ("slots", "is_even"),
    [
        ([0, 1, 2], True),
        ([2, 0, -1, 1, 2, 0], True),
        ([1] * 9 + [-1, 0, 2], False),
        ([-1, -1], False),
    ],
    ids=["one token each", "filled up", "one has most", "nobody has one"],
)
def test_a_matmul_for_all_or_one_for_each_adapter(slots: list[int], is_even: bool) -> None:
    pool = pool_for("distinct", CPU)
    weights = pool.weights[0]
    batch = dataclasses.replace(pool.batch, token_slot=torch.tensor(slots, dtype=torch.int32))
    x = torch.randn(len(slots), weights.a.shape[3])
    y = torch.randn(len(slots), weights.b.shape[2])
    want = naive(y, x, weights, batch)
    bound = ActivePages(pool.weights).bind(batch, dict.fromkeys((0, 1, 2), "v"))
    assert bound.dense is not None and bound.dense.is_even == is_even
    add_lora(y, x, weights, bound)
    assert_close(y, want)


def test_tokens_in_the_order_of_the_rows_are_not_placed() -> None:
    """Rows are gathered in the order of the tokens that asked for them first; others are placed."""
    pool = pool_for("distinct", CPU)
    pages, versions = ActivePages(pool.weights), dict.fromkeys((0, 1, 2), "v")
    for slots, is_in_order in (([2, 0, 1], True), ([0, 1, 2], False), ([2, -1, 0, 1], False)):
        batch = dataclasses.replace(pool.batch, token_slot=torch.tensor(slots, dtype=torch.int32))
        bound = pages.bind(batch, versions)
        assert bound.dense is not None and bound.dense.is_in_order == is_in_order
        for weights in pool.weights:
            x = torch.randn(len(slots), weights.a.shape[3])
            # A view of some columns: rows are not side by side.
            y = torch.randn(len(slots), weights.b.shape[2] + 3)[:, 1:-2]
            want = naive(y, x, weights, batch)
            add_lora(y, x, weights, bound)
            assert_close(y, want)
