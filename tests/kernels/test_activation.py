import pytest
import torch

from kernels.activation import silu_mul
from tests.kernels.tolerances import assert_close


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(5, 34), (1, 2), (2, 3, 10)])
def test_silu_mul_equals_the_formula(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    gate_up = (torch.randn(*shape) * 3).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    got = silu_mul(gate_up)
    assert got.dtype == dtype
    assert_close(got, gate / (1 + (-gate).exp()) * up)


def test_bad_arguments_say_expected_and_got() -> None:
    with pytest.raises(ValueError, match="expected an even number, got 7"):
        silu_mul(torch.zeros(2, 7))
    with pytest.raises(ValueError, match=r"gate_up: expected dtype .* got torch.int64"):
        silu_mul(torch.zeros(2, 8).long())
