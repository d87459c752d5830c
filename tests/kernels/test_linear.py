"""Shares of a matmul, against fp64."""

import pytest
import torch

from kernels.linear import kernel, linear_shares
from kernels.linear.table import Blocks
from tests.kernels.conftest import Target
from tests.kernels.tolerances import assert_close


def inputs(num_tokens: int, hidden: int, width: int, target: Target) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(num_tokens, hidden, generator=generator) / hidden**0.5
    weight = torch.randn(width, hidden, generator=generator)
    x, weight = x.to(target.device, target.dtype), weight.to(target.device, target.dtype)
    return x, weight, x.double() @ weight.double().T


@pytest.mark.parametrize(
    ("num_tokens", "hidden", "width"), [(1, 64, 128), (7, 100, 37), (40, 96, 80)]
)
@pytest.mark.parametrize("blocks", [Blocks(32, 32, 2), Blocks(16, 32, 3), Blocks(64, 64, 1)])
def test_shares_add_up(
    num_tokens: int, hidden: int, width: int, blocks: Blocks, target: Target
) -> None:
    x, weight, want = inputs(num_tokens, hidden, width, target)
    shares = kernel.linear_shares(x, weight, None, blocks)
    assert shares.dtype == (torch.float32 if shares.shape[0] > 1 else x.dtype)
    assert_close(shares.float().sum(0).to(x.dtype), want)


def test_rows_may_lie_apart(target: Target) -> None:
    x, weight, want = inputs(5, 64, 48, target)
    apart = torch.cat((x, x), dim=1)[:, :64]
    shares = kernel.linear_shares(apart, weight, None, Blocks(32, 32, 2))
    assert_close(shares.float().sum(0).to(x.dtype), want)


def test_a_bias_is_in_one_share(target: Target) -> None:
    x, weight, want = inputs(5, 96, 48, target)
    bias = torch.randn(48, generator=torch.Generator().manual_seed(1)).to(x)
    shares = kernel.linear_shares(x, weight, bias, Blocks(16, 32, 3))
    assert_close(shares.sum(0).to(x.dtype), want + bias.double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_on_the_cpu(dtype: torch.dtype) -> None:
    x, weight, want = inputs(3, 33, 21, Target("cpu", dtype))
    shares = linear_shares(x, weight)
    assert shares.shape == (1, 3, 21)
    assert_close(shares[0], want)


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 64, 65, 128, 129])
def test_at_the_shape_of_an_8b_model(num_tokens: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    x, weight, want = inputs(num_tokens, 14336, 4096, Target("cuda", torch.bfloat16))
    shares = linear_shares(x, weight)
    assert_close(shares.float().sum(0).bfloat16(), want)


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        ((3, 8, 1), (4, 8), r"x: expected shape \[T, H\], got \[3, 8, 1\]"),
        ((3, 8), (4, 9), r"weight: expected shape \[N, 8\], got \[4, 9\]"),
    ],
)
def test_bad_shapes_say_expected_and_got(
    x: tuple[int, ...], weight: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        linear_shares(torch.zeros(x), torch.zeros(weight))


def test_bad_dtypes_and_strides_say_expected_and_got() -> None:
    with pytest.raises(
        ValueError, match=r"weight: expected dtype torch.float32, got torch.float16"
    ):
        linear_shares(torch.zeros(2, 4), torch.zeros(3, 4).half())
    with pytest.raises(ValueError, match=r"bias: expected shape \[3\], got \[2\]"):
        linear_shares(torch.zeros(2, 4), torch.zeros(3, 4), torch.zeros(2))
    with pytest.raises(ValueError, match=r"bias: expected a contiguous tensor, got strides \(2,\)"):
        linear_shares(torch.zeros(2, 4), torch.zeros(3, 4), torch.zeros(6)[::2])
    with pytest.raises(ValueError, match=r"weight's last stride: expected 1, got 3"):
        linear_shares(torch.zeros(2, 4), torch.zeros(4, 3).T)
