"""How long the LoRA ops of a step take, without slowing it.

CPU: the clock around every op; ops run when called. CUDA: events around every op on one step in
SAMPLE_EVERY (eight records a layer), read when that step's tokens have been read; None in between.
It is the middle one of them: the first steps compile kernels, which is no time of the ops.
"""

import time
from typing import Protocol

import torch

SAMPLE_EVERY = 64
SAMPLED_STEP = SAMPLE_EVERY // 2


class LoraTimer(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def total_ms(self) -> float | None:
        """The step's LoRA time; None when this step was not measured."""


class ClockTimer:
    def __init__(self) -> None:
        self._total_s = 0.0
        self._started_s = 0.0

    def start(self) -> None:
        self._started_s = time.perf_counter()

    def stop(self) -> None:
        self._total_s += time.perf_counter() - self._started_s

    def total_ms(self) -> float | None:
        return self._total_s * 1e3


class EventTimer:
    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def start(self) -> None:
        self._record()

    def stop(self) -> None:
        self._record()

    def total_ms(self) -> float | None:
        if not self._events:
            return 0.0
        self._events[-1].synchronize()
        pairs = zip(self._events[::2], self._events[1::2], strict=True)
        return float(sum(start.elapsed_time(stop) for start, stop in pairs))

    def _record(self) -> None:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._events.append(event)


class NoTimer:
    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def total_ms(self) -> float | None:
        return None


def lora_timer(device: torch.device, step: int) -> LoraTimer:
    """step: counts the steps with an adapter, from 1."""
    if device.type == "cpu":
        return ClockTimer()
    return EventTimer() if step % SAMPLE_EVERY == SAMPLED_STEP else NoTimer()
