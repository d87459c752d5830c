"""Integers that kernels count with on the device: zero before every launch and after it."""

import torch

# By device and stream, None for what graphs count with; the last of a list is in use. None is ever
# freed: a captured graph counts with the one of its capture, and has no reference that keeps it.
KEPT: dict[tuple[torch.device, int | None], list[torch.Tensor]] = {}
MIN_KEPT = 4096


def tickets(device: torch.device, count: int) -> torch.Tensor:
    """At least count int32 zeros for the launch that follows. Whoever counts leaves zeros.

    Launches of one stream share them: those of several streams may run at once. All captured
    launches share others: graphs may be replayed beside any launches, but one graph after another,
    as graphs that share memory must be. A device's first call under capture, before any that was
    not, gets its own, zeroed by every replay: a fill that is only recorded must not be taken for
    done.
    """
    if not _is_capturing(device):
        # A capture makes none: a launch like it, which warms it up, has made them here.
        _kept((device, None), count)
        return _kept((device, _stream(device)), count)
    made = KEPT.get((device, None), [])
    if made and len(made[-1]) >= count:
        return made[-1]
    return torch.zeros(count, dtype=torch.int32, device=device)


def _kept(key: tuple[torch.device, int | None], count: int) -> torch.Tensor:
    made = KEPT.setdefault(key, [])
    if not made or len(made[-1]) < count:
        # Doubled: those kept sum up to no more than twice the largest.
        size = max(MIN_KEPT, count, 2 * len(made[-1]) if made else 0)
        made.append(torch.zeros(size, dtype=torch.int32, device=key[0]))
    return made[-1]


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
