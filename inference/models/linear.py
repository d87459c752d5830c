"""Linear layers: packed once for the CPU's matrix library; in shares for their reader on CUDA."""

from dataclasses import dataclass
from typing import Protocol

import torch

from inference.cpu_threads import threads
from kernels.folded import linear_shrink
from kernels.linear import linear_shares
from kernels.lora import LoraBatch, LoraWeights, Shrunk, shrink

# Any small batch: the packed form is the same for all that we run.
BATCH_HINT = 8


class Linear(Protocol):
    """y = x Wᵀ + b. x [T, in] → new y [T, out], or its shares [P, T, out] (kernels/shares.py)."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def with_shrink(
        self, x: torch.Tensor, weights: LoraWeights, batch: LoraBatch
    ) -> tuple[torch.Tensor, Shrunk]:
        """y, and the first half of the adapters' part."""
        ...


@dataclass(frozen=True)
class PlainLinear:
    """weight [out, in], bias [out]."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear_shares(x, self.weight, self.bias)

    def with_shrink(
        self, x: torch.Tensor, weights: LoraWeights, batch: LoraBatch
    ) -> tuple[torch.Tensor, Shrunk]:
        return linear_shrink(x, self.weight, weights, batch, self.bias)


@dataclass(frozen=True)
class PackedLinear:
    """weight in oneDNN's blocked layout, opaque to other ops. one_row [in, out]: the same numbers
    for x of one row, if kept, in the order of memory that suits it. num_threads: that it takes,
    also in a step whose other ops have one.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    num_threads: int
    one_row: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        with threads(self.num_threads):
            if self.one_row is not None and x.shape[0] == 1:
                y = x @ self.one_row
                return y if self.bias is None else y.add_(self.bias)
            found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self.weight, self.bias, "none", [], ""
            )
            return found

    def with_shrink(
        self, x: torch.Tensor, weights: LoraWeights, batch: LoraBatch
    ) -> tuple[torch.Tensor, Shrunk]:
        return self(x), shrink(x, weights, batch)


def linear(
    weight: torch.Tensor, bias: torch.Tensor | None = None, keeps_one_row: bool = False
) -> Linear:
    """The faster form for the device. keeps_one_row: where memory for a second copy is no matter.

    Packing saves the repacking that a plain matmul does on every call: on one core in fp32,
    [8, 576] × [576, 3072] took 1.98 ms packed and 2.88 plain, [2, 576] × [576, 49152] 17 and 38,
    one row the same. These ops are what torch's own inductor emits for frozen weights. One row
    wants a tall weight transposed, so that it is read as it lies: [1, 576] × [576, 49152] took
    8.5 ms, plain 17.5 and packed 18. A weight that is not tall is kept plain for it.
    """
    if weight.device.type != "cpu" or not _can_pack(weight):
        return PlainLinear(weight, bias)
    num_threads = torch.get_num_threads()
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, BATCH_HINT)
    if not keeps_one_row:
        return PackedLinear(packed, bias, num_threads)
    is_tall = weight.shape[0] > weight.shape[1]
    return PackedLinear(
        packed, bias, num_threads, weight.t().contiguous() if is_tall else weight.t()
    )


def _can_pack(weight: torch.Tensor) -> bool:
    has_ops = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return weight.dtype is torch.float32 and has_ops and torch._C._has_mkldnn
