import pytest
import torch

from kernels.rope import apply_rope
from tests.kernels.tolerances import assert_close

NUM_TOKENS, HEAD_DIM = 6, 16


def angles(rotary: int) -> torch.Tensor:
    frequency = 100.0 ** -(torch.arange(rotary // 2).double() / (rotary // 2))
    return torch.arange(NUM_TOKENS).double()[:, None] * 3 * frequency


def turned(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Each pair as a complex number times e^(i·angle)."""
    half = angle.shape[1]
    low, high, rest = x.double().tensor_split([half, 2 * half], dim=-1)
    pairs = torch.complex(low, high) * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat((pairs.real, pairs.imag, rest), dim=-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rotary", [HEAD_DIM, 6])
def test_rope_turns_each_pair_by_its_angle(rotary: int, dtype: torch.dtype) -> None:
    """q and k are views of one fused projection; a rotary size below the head's leaves the rest."""
    fused = torch.randn(NUM_TOKENS, 5 * HEAD_DIM).to(dtype)
    q = fused[:, : 3 * HEAD_DIM].view(NUM_TOKENS, 3, HEAD_DIM)
    k = fused[:, 3 * HEAD_DIM :].view(NUM_TOKENS, 2, HEAD_DIM)
    angle, before = angles(rotary), fused.clone()
    got_q, got_k = apply_rope(q, k, angle.cos().float(), angle.sin().float())
    assert got_q.dtype == dtype
    assert_close(got_q, turned(q, angle))
    assert_close(got_k, turned(k, angle))
    assert torch.equal(got_q[0], q[0])
    assert torch.equal(fused, before)


def test_bad_arguments_say_expected_and_got() -> None:
    q, k, cos = torch.zeros(6, 3, 16), torch.zeros(6, 2, 16), torch.zeros(6, 8)
    with pytest.raises(ValueError, match=r"k: expected shape \[6, HKV, 16\], got \[6, 2, 15\]"):
        apply_rope(q, k[..., 1:], cos, cos)
    with pytest.raises(ValueError, match=r"cos: expected shape \[6, Dr/2\], got \[5, 8\]"):
        apply_rope(q, k, cos[1:], cos)
    with pytest.raises(ValueError, match=r"sin: expected shape \[6, 8\], got \[6, 7\]"):
        apply_rope(q, k, cos, cos[:, 1:])
    with pytest.raises(ValueError, match="rotary size: expected at most 16, got 18"):
        apply_rope(q, k, torch.zeros(6, 9), torch.zeros(6, 9))
    with pytest.raises(ValueError, match=r"q: expected dtype .* got torch.float64"):
        apply_rope(q.double(), k, cos, cos)
