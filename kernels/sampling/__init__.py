"""The likeliest token of each row, and whether the row can be trusted."""

import torch

from kernels.contract import FLOATS, expect, expect_dtype, expect_shape
from kernels.sampling import reference


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """Semantics: the first index of a row's largest element; -1 where one is NaN or infinite.

    logits [B, V] fp32, fp16 or bf16, elements of a row adjacent, V at least 1 and below 2^31.
    Returns a new [B] int64.
    """
    expect_dtype("logits", logits, *FLOATS)
    expect_shape("logits", logits, ["B", "V"])
    expect(0 < logits.shape[1] < 2**31, "V", "1 to 2^31 - 1", logits.shape[1])
    expect(
        logits.stride(1) == 1 or logits.shape[1] == 1, "logits' last stride", 1, logits.stride(1)
    )
    if not logits.is_cuda:
        return reference.argmax(logits)
    from kernels.sampling import kernel

    return kernel.argmax(logits)
