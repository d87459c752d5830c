"""Rotary angles by position, scaled as the model was trained."""

import math

import torch

from inference.model_spec import RopeSpec


def rope_table(
    rope: RopeSpec, head_dim: int, num_positions: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """(cos, sin), each [num_positions, head_dim / 2] fp32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = _scaled(1.0 / rope.theta**exponents, rope)
    angles = torch.outer(torch.arange(num_positions).float(), frequencies)
    return angles.cos().to(device), angles.sin().to(device)


def _scaled(frequencies: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3(frequencies, rope)
    return frequencies


def _llama3(frequencies: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    """Long wavelengths are stretched, short ones kept, those between blended (Llama 3.1)."""
    wavelengths = 2 * math.pi / frequencies
    low = rope.original_max_position / rope.low_freq_factor
    high = rope.original_max_position / rope.high_freq_factor
    share = (rope.original_max_position / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - share) * frequencies / rope.factor + share * frequencies
    stretched = torch.where(wavelengths > low, frequencies / rope.factor, frequencies)
    between = (wavelengths <= low) & (wavelengths >= high)
    return torch.where(between, blended, stretched)
