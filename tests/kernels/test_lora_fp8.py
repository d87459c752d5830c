"""Rank rows stored in fp8: the kernels multiply exactly what is stored, and it is close enough."""

import dataclasses

import pytest
import torch

from kernels.bench.workloads import Group, Pool, make_pool, slot_ranks, token_slots
from kernels.lora import LoraWeights, add_lora, shrink
from kernels.lora.fp8 import FP8, quantize_rows
from tests.kernels.conftest import Target
from tests.kernels.test_lora import add_dense, add_triton, inputs, naive
from tests.kernels.tolerances import assert_close, error_ratio

GROUP = Group(hidden=48, slice_sizes=(64, 16, 16))


def pool_for(workload: str, target: Target, num_tokens: int = 9) -> Pool:
    return make_pool(
        (GROUP,),
        token_slots(workload, num_tokens, 4),
        slot_ranks(workload, 4, 24),
        dtype=target.dtype,
        device=target.device,
    )


def in_fp8(weights: LoraWeights) -> LoraWeights:
    a, a_scales = quantize_rows(weights.a)
    parts = torch.split(weights.b, list(weights.slice_sizes), dim=2)
    b, b_scales = zip(*(quantize_rows(part) for part in parts), strict=True)
    row_scales = a_scales * torch.stack(b_scales, dim=1)
    return dataclasses.replace(weights, a=a, b=torch.cat(b, dim=2), row_scales=row_scales)


def as_stored(weights: LoraWeights) -> LoraWeights:
    """fp32 rows of the same product: the scales go into A."""
    assert weights.row_scales is not None
    a = weights.a.float() * weights.row_scales[..., None]
    return dataclasses.replace(weights, a=a, b=weights.b.float(), row_scales=None)


@pytest.mark.parametrize("workload", ["uniform", "distinct", "mixed-ranks"])
def test_triton_multiplies_what_is_stored(workload: str, target: Target) -> None:
    pool = pool_for(workload, target)
    weights = in_fp8(pool.weights[0])
    x, y = inputs(pool, pool.weights[0])
    want = naive(y, x, as_stored(weights), pool.batch)
    add_triton(y, x, weights, pool.batch)
    assert_close(y, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_cpu_multiplies_what_is_stored(dtype: torch.dtype) -> None:
    pool = pool_for("mixed-ranks", Target("cpu", dtype))
    weights = in_fp8(pool.weights[0])
    x, y = inputs(pool, pool.weights[0])
    want = naive(y, x, as_stored(weights), pool.batch)
    bound = y.clone()
    add_lora(y, x, weights, pool.batch)
    assert_close(y, want)
    add_dense(bound, x, weights, pool.batch)
    assert_close(bound, want)


def test_the_answer_is_near_that_of_the_full_rows() -> None:
    pool = pool_for("distinct", Target("cpu", torch.float32))
    weights = pool.weights[0]
    x, y = inputs(pool, weights)
    y.zero_()
    want = naive(y, x, weights, pool.batch)
    add_lora(y, x, in_fp8(weights), pool.batch)
    assert 0 < error_ratio(y, want) < 0.05


def test_rows_keep_their_size_and_zeros() -> None:
    rows = torch.tensor([[0.0, 0.0], [3.0, -1e-3], [1e30, 2e29]])
    stored, scale = quantize_rows(rows)
    assert stored.dtype == FP8
    back = stored.float() * scale[:, None]
    assert torch.equal(back[0], rows[0])
    assert torch.allclose(back, rows, rtol=1 / 16, atol=0)


def test_bad_arguments_say_expected_and_got() -> None:
    pool = pool_for("uniform", Target("cpu", torch.float32))
    weights = in_fp8(pool.weights[0])
    x, _ = inputs(pool, pool.weights[0])
    with pytest.raises(ValueError, match=r"a: expected dtype torch.float32 or"):
        dataclasses.replace(weights, row_scales=None)
    with pytest.raises(ValueError, match=r"a with row_scales: expected dtype torch.float8_e4m3fn"):
        dataclasses.replace(weights, a=weights.a.half(), b=weights.b.half())
    with pytest.raises(ValueError, match=r"row_scales: expected shape \[\d+, 3, 8\]"):
        assert weights.row_scales is not None
        dataclasses.replace(weights, row_scales=weights.row_scales[:, :2])
    with pytest.raises(ValueError, match=r"row_scales: expected a contiguous tensor"):
        assert weights.row_scales is not None
        dataclasses.replace(weights, row_scales=weights.row_scales.mT.contiguous().mT)
    with pytest.raises(ValueError, match=r"x: expected dtype torch.float32 or"):
        shrink(x.double(), weights, pool.batch)
