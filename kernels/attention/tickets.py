"""Integers that kernels count with on the device: zero before every launch and after it."""

import torch

# By device. A larger one replaces it; graphs captured with the former keep that one alive.
KEPT: dict[torch.device, torch.Tensor] = {}
MIN_KEPT = 4096


def tickets(device: torch.device, count: int) -> torch.Tensor:
    """At least count int32 zeros. Whoever counts with them leaves zeros: launches of one stream
    share them.

    A first call under capture gets its own, zeroed by every replay: a fill that is only recorded
    must not be taken for done by a later eager call.
    """
    kept = KEPT.get(device)
    if kept is not None and len(kept) >= count:
        return kept
    made = torch.zeros(max(MIN_KEPT, count), dtype=torch.int32, device=device)
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        KEPT[device] = made
    return made
