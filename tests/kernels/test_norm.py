from collections.abc import Callable
from functools import partial
from types import ModuleType

import pytest
import torch

import kernels.norm
from kernels.norm import add_rms_norm, rms_norm
from tests.kernels.conftest import HAS_CUDA, Target
from tests.kernels.tolerances import assert_close

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def formula(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    size = x.shape[-1]
    rows = [row / (row.dot(row) / size + eps).sqrt() for row in x.double().reshape(-1, size)]
    return torch.stack(rows).view(x.shape) * weight.double()


def triton_ops(target: Target) -> ModuleType:
    """The public calls launch on CUDA; the interpreter is reached beneath them."""
    if target.device == "cuda":
        return kernels.norm
    from kernels.norm import kernel

    return kernel


def inputs(shape: tuple[int, ...], target: Target, spread: float = 3.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    return [
        (torch.randn(*size, generator=generator) * spread).to(target.device, target.dtype)
        for size in (shape, shape, shape[-1:])
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(5, 37), (1, 37), (37,), (3, 2, 37), (2, 2, 3, 37)])
def test_rms_norm_equals_the_formula(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, _, weight = inputs(shape, Target("cpu", dtype))
    got = rms_norm(x, weight, 1e-5)
    assert got.dtype == dtype
    assert_close(got, formula(x, weight, 1e-5))


def test_eps_counts() -> None:
    assert_close(
        rms_norm(torch.full((1, 37), 1e-3), torch.ones(37), 3e-6), torch.full((1, 37), 0.5)
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_add_rms_norm_adds_in_place(dtype: torch.dtype) -> None:
    x, residual, weight = inputs((4, 37), Target("cpu", dtype))
    total, before = x + residual, x.clone()
    normed = add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(residual, total)
    assert torch.equal(x, before)
    assert_close(normed, formula(total, weight, 1e-6))


@pytest.mark.parametrize("shape", [(5, 37), (1, 64), (37,), (3, 576), (2, 4096), (1, 16384)])
def test_triton_rms_norm(shape: tuple[int, ...], target: Target) -> None:
    x, _, weight = inputs(shape, target)
    got = triton_ops(target).rms_norm(x, weight, 1e-5)
    assert got.dtype == target.dtype
    assert_close(got.cpu(), formula(x.cpu(), weight.cpu(), 1e-5))


@pytest.mark.parametrize("size", [16, 20])
def test_triton_norm_of_heads_inside_a_projection(size: int, target: Target) -> None:
    """Rows are not neighbours of the next token's; nothing beside them is read or written."""
    fused, _, _ = inputs((9, 7 * size), target)
    weight = inputs((size,), target)[2]
    heads = fused.view(9, 7, size)[:, 2:5]
    before = fused.clone()
    got = triton_ops(target).rms_norm(heads, weight, 1e-5)
    assert_close(got.cpu(), formula(heads.cpu(), weight.cpu(), 1e-5))
    assert torch.equal(fused, before)


@pytest.mark.parametrize("shape", [(1, 37), (5, 576), (3, 4096)])
def test_triton_add_rms_norm(shape: tuple[int, ...], target: Target) -> None:
    """x and residual are columns of wider tensors: the gaps of their rows stay as they were."""
    num_rows, size = shape
    wide, wide_residual, _ = inputs((num_rows, size + 3), target)
    weight = inputs(shape, target)[2]
    x, residual = wide[:, 1 : size + 1], wide_residual[:, 2 : size + 2]
    total, before = x + residual, wide_residual.clone()
    normed = triton_ops(target).add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(residual, total)
    assert torch.equal(wide_residual[:, :2], before[:, :2])
    assert torch.equal(wide_residual[:, -1], before[:, -1])
    assert_close(normed.cpu(), formula(total.cpu(), weight.cpu(), 1e-6))


def check_shares(op: Callable[..., torch.Tensor], target: Target) -> None:
    shares = torch.randn(3, 5, 37, generator=torch.Generator().manual_seed(2)).to(target.device)
    _, residual, weight = inputs((5, 37), target)
    total = residual.double() + shares.double().sum(0)
    normed = op(shares, residual, weight, 1e-6)
    assert normed.dtype == target.dtype
    assert_close(residual.cpu(), total.cpu())
    assert_close(normed.cpu(), formula(total.cpu(), weight.cpu(), 1e-6))


def test_triton_add_rms_norm_of_shares(target: Target) -> None:
    check_shares(triton_ops(target).add_rms_norm, target)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_add_rms_norm_of_shares(dtype: torch.dtype) -> None:
    check_shares(add_rms_norm, Target("cpu", dtype))


def test_triton_norm_of_no_rows(target: Target) -> None:
    x, _, weight = inputs((0, 37), target)
    assert triton_ops(target).rms_norm(x, weight, 1e-5).shape == (0, 37)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("shape", [(256, 4096), (1000, 5120), (7, 13824)])
def test_norms_of_many_rows_and_twice_the_same_bits(shape: tuple[int, ...]) -> None:
    x, residual, weight = inputs(shape, Target("cuda", torch.bfloat16))
    total, copy = x + residual, residual.clone()
    first = add_rms_norm(x, residual, weight, 1e-5)
    assert_close(first.cpu(), formula(total.cpu(), weight.cpu(), 1e-5))
    assert torch.equal(first, add_rms_norm(x, copy, weight, 1e-5))
    assert torch.equal(first, rms_norm(total, weight, 1e-5))


def test_bad_arguments_say_expected_and_got() -> None:
    x = torch.zeros(2, 37)
    with pytest.raises(ValueError, match=r"weight: expected shape \[37\], got \[36\]"):
        rms_norm(x, torch.ones(36), 1e-5)
    with pytest.raises(ValueError, match=r"x: expected dtype .* got torch.int64"):
        rms_norm(x.long(), torch.ones(37), 1e-5)
    with pytest.raises(ValueError, match=r"weight: expected dtype torch.float32, got .*float16"):
        rms_norm(x, torch.ones(37).half(), 1e-5)
    for norm in (rms_norm, partial(add_rms_norm, x)):
        with pytest.raises(ValueError, match="eps: expected at least 0, got -1"):
            norm(x, torch.ones(37), -1.0)
    with pytest.raises(ValueError, match="weight: expected device cpu, got meta"):
        rms_norm(x, torch.ones(37, device="meta"), 1e-5)
    with pytest.raises(ValueError, match=r"x: expected shape \[1, 37\], got \[2, 37\]"):
        add_rms_norm(x, x[:1], torch.ones(37), 1e-5)
    with pytest.raises(ValueError, match=r"x: expected dtype torch.float16, got torch.float32"):
        add_rms_norm(x, x.half(), torch.ones(37).half(), 1e-5)
    with pytest.raises(ValueError, match=r"x: expected dtype .*float32 or .*float16, got .*bfloat"):
        add_rms_norm(x[None].bfloat16(), x.half(), torch.ones(37).half(), 1e-5)
    with pytest.raises(ValueError, match=r"residual: expected shape \[T, H\], got \[1, 2, 37\]"):
        add_rms_norm(x[None], x[None], torch.ones(37), 1e-5)
