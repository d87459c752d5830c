"""Values between the host and a device, without waiting for what the device does."""

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Arrival:
    """A tensor on its way to the host."""

    _values: torch.Tensor
    _event: torch.cuda.Event | None

    def wait(self) -> torch.Tensor:
        """The values, on the CPU."""
        if self._event is not None:
            self._event.synchronize()
        return self._values


def to_host(values: torch.Tensor) -> Arrival:
    """Starts the copy, after what the current stream was given so far."""
    if values.device.type == "cpu":
        return Arrival(values, None)
    pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    pinned.copy_(values, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return Arrival(pinned, event)
