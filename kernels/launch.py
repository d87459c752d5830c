"""How kernels are launched beside each other on a device."""

import functools

import torch


def launch_options(device: torch.device) -> dict[str, bool]:
    """Keyword arguments of a kernel that may start while the one before it on the stream ends.

    Programmatic dependent launch, compute capability 9 and up: a kernel with PDL true calls
    gdc_wait before its first access to memory, so that only its start is early. Elsewhere, the
    interpreter included, PDL is false and the launch is a plain one.
    """
    if device.type != "cuda" or not _has_dependent_launch(device):
        return {"PDL": False}
    return {"PDL": True, "launch_pdl": True}


@functools.cache
def _has_dependent_launch(device: torch.device) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9
