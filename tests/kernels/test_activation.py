from collections.abc import Callable

import pytest
import torch

from kernels.activation import silu_mul
from tests.kernels.conftest import HAS_CUDA, Target
from tests.kernels.tolerances import assert_close


def formula(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate / (1 + (-gate).exp()) * up


def triton_op(target: Target) -> Callable[[torch.Tensor], torch.Tensor]:
    """The public call launches on CUDA; the interpreter is reached beneath it."""
    if target.device == "cuda":
        return lambda gate_up: silu_mul(gate_up, target.dtype)
    from kernels.activation import kernel

    return lambda gate_up: kernel.silu_mul(gate_up, target.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(5, 34), (1, 2), (0, 8)])
def test_silu_mul_equals_the_formula(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    gate_up = (torch.randn(*shape) * 3).to(dtype)
    got = silu_mul(gate_up)
    assert got.dtype == dtype
    assert_close(got, formula(gate_up))


@pytest.mark.parametrize("shape", [(5, 34), (1, 2), (3, 1034), (2, 2048), (0, 8)])
def test_triton_silu_mul(shape: tuple[int, ...], target: Target) -> None:
    gate_up = (torch.randn(*shape) * 3).to(target.device, target.dtype)
    got = triton_op(target)(gate_up)
    assert got.dtype == target.dtype
    assert_close(got.cpu(), formula(gate_up.cpu()))


def test_triton_silu_mul_of_rows_with_gaps(target: Target) -> None:
    wide = torch.randn(4, 61).to(target.device, target.dtype)
    assert_close(triton_op(target)(wide[:, 3:57]).cpu(), formula(wide[:, 3:57].cpu()))


def test_triton_silu_mul_of_shares(target: Target) -> None:
    shares = (torch.randn(3, 5, 34) * 2).to(target.device)
    got = triton_op(target)(shares)
    assert got.dtype == target.dtype
    assert_close(got.cpu(), formula(shares.double().sum(0).cpu()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_silu_mul_of_shares(dtype: torch.dtype) -> None:
    shares = torch.randn(3, 5, 34)
    got = silu_mul(shares, dtype)
    assert got.dtype == dtype
    assert_close(got, formula(shares.double().sum(0)))
    assert torch.equal(silu_mul(shares[:1]), silu_mul(shares[0]))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
def test_triton_silu_mul_at_the_ends(target: Target) -> None:
    """Where e^−g overflows, its inverse is still zero; only numpy, under the interpreter, minds."""
    gate = torch.tensor([-200.0, -20.0, 0.0, 20.0, 200.0])
    gate_up = torch.cat((gate, torch.ones(5)))[None].to(target.device, target.dtype)
    got = triton_op(target)(gate_up).float().cpu()
    assert torch.equal(got[0, [0, 2, 4]], torch.tensor([-0.0, 0.0, 200.0]))
    assert_close(got.to(target.dtype), formula(gate_up.cpu()))


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("num_tokens", [1, 64, 1000])
def test_silu_mul_of_a_large_model(num_tokens: int) -> None:
    gate_up = torch.randn(num_tokens, 28672, device="cuda").bfloat16()
    assert_close(silu_mul(gate_up).cpu(), formula(gate_up).cpu())


def test_bad_arguments_say_expected_and_got() -> None:
    with pytest.raises(ValueError, match="expected an even number, got 7"):
        silu_mul(torch.zeros(2, 7))
    with pytest.raises(ValueError, match=r"gate_up: expected dtype .* got torch.int64"):
        silu_mul(torch.zeros(2, 8).long())
    with pytest.raises(ValueError, match=r"gate_up: expected dtype torch.float16, got .*float32"):
        silu_mul(torch.zeros(2, 8), torch.float16)
    with pytest.raises(ValueError, match=r"gate_up: expected shape \[T, N\], got \[8\]"):
        silu_mul(torch.zeros(8))
    with pytest.raises(ValueError, match=r"dtype: expected torch.float32 or .*, got torch.int8"):
        silu_mul(torch.zeros(1, 2, 8), torch.int8)
