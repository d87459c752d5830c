"""LoRA's first half on its way to whoever reads it."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Shrunk:
    """h = scale · A x of one projection group.

    shares [P, T, NS, max_rank]: their sum is h; rank rows that are not a token's own are zero on
    the CPU and unwritten on CUDA. (On the CPU, where ActivePages bound the batch, P is 1 and
    places stand for tokens, with the rows of the widest adapter: DenseBatch.)
    column: the group's, as in LoraWeights.
    listed [tiles, NS, tokens of a block, rows], on CUDA in decode: h in the order of the plan's
    lists, zero where a row is another token's.
    """

    shares: torch.Tensor
    column: int
    listed: torch.Tensor | None = None

    @property
    def rows(self) -> torch.Tensor:
        """What the kernels read."""
        return self.shares if self.listed is None else self.listed
