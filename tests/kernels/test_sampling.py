from collections.abc import Callable

import pytest
import torch

from kernels.sampling import argmax
from tests.kernels.conftest import HAS_CUDA, Target

SHAPES = [(5, 34), (1, 1), (3, 4096), (2, 4097), (4, 9000), (0, 8)]


def triton_op(target: Target) -> Callable[[torch.Tensor], torch.Tensor]:
    """The public call launches on CUDA; the interpreter is reached beneath it."""
    if target.device == "cuda":
        return argmax
    from kernels.sampling import kernel

    return kernel.argmax


def by_hand(logits: torch.Tensor) -> list[int]:
    """numpy promises the first of equals."""
    found: list[int] = logits.double().cpu().numpy().argmax(axis=1).tolist()
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_argmax_is_the_first_of_the_largest(shape: tuple[int, int], dtype: torch.dtype) -> None:
    logits = torch.randn(*shape).to(dtype)
    assert argmax(logits).tolist() == by_hand(logits)


@pytest.mark.parametrize("shape", SHAPES)
def test_triton_argmax(shape: tuple[int, int], target: Target) -> None:
    logits = torch.randn(*shape).to(target.device, target.dtype)
    found = triton_op(target)(logits)
    assert found.dtype == torch.int64
    assert found.tolist() == by_hand(logits)


def test_triton_argmax_of_equals_is_the_first(target: Target) -> None:
    """In a part, across parts, and where all are equal."""
    logits = torch.zeros(4, 9000)
    logits[1, [700, 701, 4096, 8999]] = 2.0
    logits[2, [4095, 4096]] = 0.5
    logits[3] = -3.0
    assert triton_op(target)(logits.to(target.device, target.dtype)).tolist() == [0, 700, 4095, 0]


def test_triton_argmax_of_rows_with_gaps(target: Target) -> None:
    wide = torch.randn(4, 5000).to(target.device, target.dtype)
    assert triton_op(target)(wide[:, 3:4990]).tolist() == by_hand(wide[:, 3:4990])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 4095, 4096, 8999])
def test_triton_a_row_that_is_not_finite_has_no_token(
    place: int, bad: float, target: Target
) -> None:
    logits = torch.randn(3, 9000)
    logits[1, place] = bad
    want = by_hand(logits.to(target.dtype))
    found = triton_op(target)(logits.to(target.device, target.dtype)).tolist()
    assert found == [want[0], -1, want[2]]
    assert argmax(logits.to(target.dtype)).tolist() == found


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("num_rows", [1, 64, 256])
def test_argmax_of_a_large_vocabulary(num_rows: int) -> None:
    logits = torch.randn(num_rows, 128256, device="cuda").bfloat16()
    assert argmax(logits).tolist() == by_hand(logits)


def test_bad_arguments_say_expected_and_got() -> None:
    with pytest.raises(ValueError, match=r"logits: expected dtype .* got torch.int64"):
        argmax(torch.zeros(2, 7).long())
    with pytest.raises(ValueError, match=r"logits: expected shape \[B, V\], got \[7\]"):
        argmax(torch.zeros(7))
    with pytest.raises(ValueError, match=r"V: expected 1 to .*, got 0"):
        argmax(torch.zeros(2, 0))
    with pytest.raises(ValueError, match="last stride: expected 1, got 2"):
        argmax(torch.zeros(7, 2).T)
