"""How kernels are launched beside each other.

A device has one second stream: what several streams fork to it runs there in turn. From one thread.
"""

import contextlib
import functools

import torch


def launch_options(device: torch.device, dependent: bool = True) -> dict[str, bool]:
    """Keyword arguments of a kernel that may start while the one before it on the stream ends.

    Programmatic dependent launch, compute capability 9 and up: a kernel with PDL true calls
    gdc_wait before it reads what the kernel before it wrote and before it writes anything, and
    only then lets the next one start: so what two kernels before it wrote is complete when it
    begins. Elsewhere, the interpreter included, PDL is false and the launch is a plain one.
    """
    if not dependent or device.type != "cuda" or not _has_dependent_launch(device):
        return {"PDL": False}
    return {"PDL": True, "launch_pdl": True}


def fork(device: torch.device) -> None:
    """From here on the second stream may run what is launched beside(device)."""
    _side_stream(device).wait_stream(torch.cuda.current_stream(device))


def beside(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """What is launched inside runs on the second stream, after fork(device), until join(device).

    Capturable. Tensors must be made outside: memory made inside belongs to the second stream.
    """
    return torch.cuda.stream(_side_stream(device))


def join(device: torch.device) -> None:
    """What follows on this stream waits for what ran beside it."""
    torch.cuda.current_stream(device).wait_stream(_side_stream(device))


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@functools.cache
def _has_dependent_launch(device: torch.device) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9
