"""Values from the host to a device, without waiting for what the device does."""

import torch


def to_device(
    values: object, device: torch.device, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    """A tensor of values: a list, or a tensor on the CPU, which may change afterwards."""
    if device.type == "cpu":
        return torch.as_tensor(values, dtype=dtype).clone()
    # Memory of its own, that nothing overwrites while the copy is under way.
    pinned = torch.as_tensor(values, dtype=dtype).pin_memory()
    return pinned.to(device, non_blocking=True)
