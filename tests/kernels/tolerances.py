"""How far an op may be from its reference: one table for all. Never raised to pass a test."""

import torch

# Root mean square of the error over that of the expected values. About two roundings of the dtype.
MAX_ERROR_RATIO = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def error_ratio(got: torch.Tensor, want: torch.Tensor) -> float:
    """NaN anywhere in got gives NaN, which passes no bound."""
    difference, size = got.double() - want.double(), want.double()
    if size.numel() == 0:
        return 0.0
    return float(difference.square().mean().sqrt() / size.square().mean().sqrt().clamp(min=1e-30))


def assert_close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype | None = None) -> None:
    assert got.shape == want.shape
    ratio = error_ratio(got.cpu(), want.cpu())
    limit = MAX_ERROR_RATIO[dtype or got.dtype]
    assert ratio <= limit, f"error ratio {ratio:.2e} above {limit:.0e}"
