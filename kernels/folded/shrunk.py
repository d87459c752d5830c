"""What the folded ops read of their adapters' first half."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Shrunk:
    """h = scale · A x of one group, on its way.

    shares [P, T, NS, max_rank]: as kernels.lora's shrink returns it. listed [tiles, NS, tokens of
    a tile, rows], on CUDA in decode: the sum of the shares in the order of the plan's lists.
    """

    shares: torch.Tensor
    listed: torch.Tensor | None

    @property
    def rows(self) -> torch.Tensor:
        """What the kernels read."""
        return self.shares if self.listed is None else self.listed
