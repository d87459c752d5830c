"""Adapters on their way to the device. On CUDA a stream of their own copies, the loop never waits.

A page that is written may still be read by a step that was launched before its former owner left:
then the copy stream first waits for all that was launched before the plan that moved it. Pages that
were nobody's for some steps (Adapter.is_quiet) are written beside the step at work. No step reads
the new owner before the host has seen its copy done.
"""

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from inference.adapter import Adapter
from inference.lora import LoraPool, PackedAdapter


@dataclass(frozen=True)
class Copied:
    """A copy that is done, and what it took without waiting for its turn."""

    digest: str
    seconds: float


class AdapterCopies:
    """Only the loop's thread calls."""

    def __init__(self, lora: LoraPool) -> None:
        self._lora = lora
        self._stream: torch.cuda.Stream | None = None
        if lora.pages.device.type == "cuda":
            self._stream = torch.cuda.Stream(lora.pages.device)  # type: ignore[no-untyped-call]
        # On the compute stream, behind all that was launched before the plan at hand.
        self._launched: Any = None
        # (digest, begin, end): timing events, in the order of the stream.
        self._under_way: deque[tuple[str, Any, Any]] = deque()
        self._done: list[Copied] = []

    @property
    def num_under_way(self) -> int:
        return len(self._under_way)

    def mark(self) -> None:
        """Copies that are started from now on wait for what was launched until now, no more. Called
        where the current stream is the one that forwards are launched on.
        """
        if self._stream is not None:
            self._launched = torch.cuda.current_stream(self._stream.device).record_event()

    @torch.inference_mode()
    def start(self, adapter: Adapter, packed: PackedAdapter) -> None:
        """Queues the copy to the adapter's pages; on the CPU it is done when this returns.

        After mark(). The host pages must stay as they are until finished() reports it.
        """
        assert adapter.slot is not None, "a copy needs pages"
        if self._stream is None:
            started = time.perf_counter()
            self._lora.place(adapter.slot, adapter.pages, packed)
            self._done.append(Copied(adapter.digest, time.perf_counter() - started))
            return
        if not adapter.is_quiet:
            assert self._launched is not None, "mark() comes before start()"
            self._stream.wait_event(self._launched)
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            begin.record()
            self._lora.place(adapter.slot, adapter.pages, packed)
            end.record()
        self._under_way.append((adapter.digest, begin, end))

    def finished(self) -> list[Copied]:
        """Copies that were done since the last call. Does not wait."""
        done, self._done = self._done, []
        while self._under_way and self._under_way[0][2].query():
            digest, begin, end = self._under_way.popleft()
            done.append(Copied(digest, begin.elapsed_time(end) / 1e3))
        return done
