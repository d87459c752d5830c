"""How long the LoRA ops of a step take, without slowing it.

CPU: the clock around every op; ops run when called. CUDA: LoRA runs beside other work and inside
other ops, so on one step in SAMPLE_EVERY its ops run once more for one layer, alone, between
events. That is an upper bound, the time without any overlap. It is the middle step of the period:
the first ones compile kernels, which is no time of the ops.
"""

import time
from collections.abc import Callable

import torch

SAMPLE_EVERY = 64
SAMPLED_STEP = SAMPLE_EVERY // 2


class Clock:
    """Adds up what lies between start and stop."""

    def __init__(self) -> None:
        self._total_s = 0.0
        self._started_s = 0.0

    def start(self) -> None:
        self._started_s = time.perf_counter()

    def stop(self) -> None:
        self._total_s += time.perf_counter() - self._started_s

    @property
    def total_ms(self) -> float:
        return self._total_s * 1e3


def is_sampled(step: int) -> bool:
    """step: counts the steps with an adapter, from 1."""
    return step % SAMPLE_EVERY == SAMPLED_STEP


def cuda_span(work: Callable[[], None]) -> Callable[[], float]:
    """Launches it. Milliseconds on the device, once that has come so far: it is waited for."""
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()

    def elapsed_ms() -> float:
        end.synchronize()
        return float(begin.elapsed_time(end))

    return elapsed_ms
