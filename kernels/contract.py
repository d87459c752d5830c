"""Argument checks that every op makes before it launches: ValueError with expected and got."""

from collections.abc import Sequence

import torch


def expect(condition: bool, what: str, expected: object, got: object) -> None:
    if not condition:
        raise ValueError(f"{what}: expected {expected}, got {got}")


def expect_shape(name: str, tensor: torch.Tensor, shape: Sequence[int | str]) -> None:
    """Each entry of shape is a size that must match, or a symbol for a free one."""
    got = tensor.shape
    fits = len(got) == len(shape) and all(
        isinstance(want, str) or want == size for want, size in zip(shape, got, strict=True)
    )
    if not fits:
        wanted = ", ".join(map(str, shape))
        raise ValueError(f"{name}: expected shape [{wanted}], got {list(got)}")


def expect_dtype(name: str, tensor: torch.Tensor, *dtypes: torch.dtype) -> None:
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name}: expected dtype {_names(dtypes)}, got {tensor.dtype}")


def expect_device(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise ValueError(f"{name}: expected device {device}, got {tensor.device}")


def expect_contiguous(name: str, tensor: torch.Tensor) -> None:
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: expected a contiguous tensor, got strides {tensor.stride()}")


def _names(dtypes: Sequence[torch.dtype]) -> str:
    return " or ".join(map(str, dtypes))


FLOATS = (torch.float32, torch.float16, torch.bfloat16)
