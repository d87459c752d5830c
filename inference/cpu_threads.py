"""How many threads the ops of a step get on the CPU.

Waking a second thread takes longer than a small op does: of 8 tokens of the demo model, attention
took 18 ms a step on two threads and 11 on one, rows gathered by index 4.7 and 1.5 (AMD EPYC). Base
matmuls are worth it, and ask for all.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Beyond, ops other than the base matmuls are worth a second thread too.
MAX_TOKENS_ALONE = 16


@contextmanager
def threads(num_threads: int) -> Iterator[None]:
    """torch's number of threads for the ops that this thread calls inside; 0.1 µs to set."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def threads_of_step(num_tokens: int, device: torch.device) -> Iterator[None]:
    """One thread for a small step on the CPU."""
    if device.type != "cpu" or num_tokens > MAX_TOKENS_ALONE:
        yield
        return
    with threads(1):
        yield
