"""The host's adapter pages: a few large pieces of memory, handed out page by page.

For a GPU they are pinned and all taken at the start: pinning takes seconds for many GiB, and what
launches kernels waits for it. On the CPU memory is taken a piece at a time, when a page of it is
first wanted.
"""

import logging
import time
from collections.abc import Sequence

import torch

from inference.errors import EngineError, ErrorCode
from inference.page_set import runs_of

logger = logging.getLogger(__name__)

# torch rounds pinned memory up to a power of two.
PINNED_PIECE_BYTES = 1 << 30
PLAIN_PIECE_BYTES = 64 << 20


class HostPages:
    """Which page holds what is AdapterPool's to say. Under the engine's lock."""

    def __init__(
        self, num_pages: int, page_elements: int, dtype: torch.dtype, pin_memory: bool
    ) -> None:
        self.num_pages = num_pages
        self.page_bytes = page_elements * dtype.itemsize
        self._page_elements = page_elements
        self._dtype = dtype
        self._pin_memory = pin_memory
        piece_bytes = PINNED_PIECE_BYTES if pin_memory else PLAIN_PIECE_BYTES
        self._pages_per_piece = max(1, piece_bytes // self.page_bytes)
        self._pieces: dict[int, torch.Tensor] = {}
        if pin_memory:
            started = time.perf_counter()
            for number in range(-(-num_pages // self._pages_per_piece)):
                self._piece(number)
            took_s, num_gib = time.perf_counter() - started, num_pages * self.page_bytes / 2**30
            logger.info("pinned %.1f GiB for adapters in %.1f s", num_gib, took_s)

    def spans(self, pages: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """The pages' memory in their order, [n, page_elements] for n that lie side by side."""
        size = self._pages_per_piece
        spans = []
        for first, end in runs_of(pages):
            while first < end:
                number, start = divmod(first, size)
                stop = min(size, start + end - first)
                spans.append(self._piece(number)[start:stop])
                first += stop - start
        return tuple(spans)

    def spare(self, num_pages: int) -> tuple[torch.Tensor, ...]:
        """Memory beside the pool, not pinned, given back when nobody refers to it any more."""
        return (torch.empty(num_pages, self._page_elements, dtype=self._dtype),)

    def _piece(self, number: int) -> torch.Tensor:
        piece = self._pieces.get(number)
        if piece is None:
            num_pages = min(self._pages_per_piece, self.num_pages - number * self._pages_per_piece)
            shape = (num_pages, self._page_elements)
            try:
                piece = torch.empty(shape, dtype=self._dtype, pin_memory=self._pin_memory)
            except RuntimeError as error:
                message = f"host_adapter_bytes: no memory for {num_pages * self.page_bytes} of them"
                raise EngineError(ErrorCode.INVALID_REQUEST, f"{message}: {error}") from error
            self._pieces[number] = piece
        return piece


def num_host_pages(max_bytes: int, page_bytes: int, largest: int) -> int:
    """Pages within max_bytes, and no fewer than largest, those of the largest adapter."""
    return max(max_bytes // page_bytes, largest)
