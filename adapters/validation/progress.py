"""Where a check is: two bytes that the child writes over and its parent reads when it likes.

The file is sealed at that size, so nothing else fits in and nothing queues, however often a child
writes. What is no stage or no share is nothing.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# In the child, after its three files.
PROGRESS_FD = 3
STAGES = ("joining", "unpacking", "header", "values", "digest")

_SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


@dataclass(frozen=True)
class Progress:
    """percent: of the stage, by bytes; 0 where nothing is counted."""

    stage: str
    percent: int


Tell = Callable[[str, float], None]


@contextmanager
def progress_file() -> Iterator[int]:
    descriptor = os.memfd_create("progress", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, 2)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        yield descriptor
    finally:
        os.close(descriptor)


def read_progress(descriptor: int) -> Progress | None:
    """None before the first stage, and for what no child of ours writes."""
    stage, percent = os.pread(descriptor, 2, 0)
    if not 1 <= stage <= len(STAGES) or percent > 100:
        return None
    return Progress(STAGES[stage - 1], percent)


def tell(stage: str, share: float) -> None:
    """The child's side."""
    os.pwrite(PROGRESS_FD, bytes((STAGES.index(stage) + 1, int(100 * share))), 0)


def unheard(stage: str, share: float) -> None:
    """Where nobody waits."""
