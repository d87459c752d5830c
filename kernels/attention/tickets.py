"""Integers that kernels count with on the device: zero before every launch and after it."""

import torch

# By device and stream; the last of a list is in use. None is ever freed: a captured graph counts
# with the one of its capture, and holds no reference that would keep it.
KEPT: dict[tuple[torch.device, int], list[torch.Tensor]] = {}
MIN_KEPT = 4096


def tickets(device: torch.device, count: int) -> torch.Tensor:
    """At least count int32 zeros, of the current stream alone. Who counts with them leaves zeros.

    Safe: launches on any streams at once, from one thread; launches of one stream follow each other
    and share. A graph counts with those of the stream that captured it: such graphs, and launches
    on that stream, are to follow each other too, wherever they are replayed. A stream that launched
    nothing before its capture has none: each captured launch then has its own, which every replay
    zeroes first, since a fill that is only recorded must not be taken for done by a later launch.
    """
    kept = KEPT.setdefault((device, _stream(device)), [])
    if kept and len(kept[-1]) >= count:
        return kept[-1]
    # Doubled: those kept sum up to no more than twice the largest.
    size = max(MIN_KEPT, count, 2 * len(kept[-1]) if kept else 0)
    made = torch.zeros(size, dtype=torch.int32, device=device)
    if not _is_capturing(device):
        kept.append(made)
    return made


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
