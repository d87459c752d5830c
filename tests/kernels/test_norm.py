import pytest
import torch

from kernels.norm import add_rms_norm, rms_norm
from tests.kernels.tolerances import assert_close

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def formula(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    rows = [row / (row.dot(row) / row.numel() + eps).sqrt() for row in x.double().view(-1, 37)]
    return torch.stack(rows).view_as(x) * weight.double()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(5, 37), (1, 37), (3, 2, 37)])
def test_rms_norm_equals_the_formula(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = (torch.randn(*shape) * 3).to(dtype), torch.randn(37).to(dtype)
    got = rms_norm(x, weight, 1e-5)
    assert got.dtype == dtype
    assert_close(got, formula(x, weight, 1e-5))


def test_eps_counts() -> None:
    assert_close(
        rms_norm(torch.full((1, 37), 1e-3), torch.ones(37), 3e-6), torch.full((1, 37), 0.5)
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_add_rms_norm_returns_the_norm_and_the_sum(dtype: torch.dtype) -> None:
    x, residual = torch.randn(4, 37).to(dtype), torch.randn(4, 37).to(dtype)
    weight, before = torch.randn(37).to(dtype), residual.clone()
    normed, total = add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    assert torch.equal(residual, before)
    assert_close(normed, formula(total, weight, 1e-6))


def test_bad_arguments_say_expected_and_got() -> None:
    x = torch.zeros(2, 37)
    with pytest.raises(ValueError, match=r"weight: expected shape \[37\], got \[36\]"):
        rms_norm(x, torch.ones(36), 1e-5)
    with pytest.raises(ValueError, match=r"x: expected dtype .* got torch.int64"):
        rms_norm(x.long(), torch.ones(37), 1e-5)
    with pytest.raises(ValueError, match=r"residual: expected shape \[2, 37\], got \[1, 37\]"):
        add_rms_norm(x, x[:1], torch.ones(37), 1e-5)
    with pytest.raises(ValueError, match=r"residual: expected dtype .* got torch.float16"):
        add_rms_norm(x, x.half(), torch.ones(37), 1e-5)
