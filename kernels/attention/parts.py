"""Room for the parts of long sequences: each is computed alone, the last to end adds them."""

import torch


def new_parts(q: torch.Tensor, num_rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Partial outputs [rows, width] and log₂ of their sums [rows], fp32, unwritten."""
    partials = q.new_empty((num_rows, width), dtype=torch.float32)
    return partials, q.new_empty((num_rows,), dtype=torch.float32)
