"""Block sizes by shape. Prefill: the best of those tried on one H200 (kernels/bench/LOG.md).

Decode: what puts most programs on a multiprocessor, not yet measured in this form.
"""

from dataclasses import dataclass

from kernels.lora.table import MAX_DECODE_TOKENS


@dataclass(frozen=True)
class Blocks:
    """columns of a program (rope: of each half of a head); rank rows of a step."""

    columns: int
    rows: int
    num_warps: int = 4
    num_stages: int = 1


def silu_blocks(num_tokens: int, itemsize: int) -> Blocks:
    if itemsize == 4:
        return Blocks(32, 32)
    return Blocks(64, 64) if num_tokens <= MAX_DECODE_TOKENS else Blocks(64, 32, num_stages=2)


def rope_blocks(num_tokens: int, itemsize: int) -> Blocks:
    if itemsize == 4:
        return Blocks(32, 32)
    return Blocks(64, 128) if num_tokens <= MAX_DECODE_TOKENS else Blocks(64, 32, 8, 2)


def norm_blocks(num_tokens: int, itemsize: int) -> Blocks:
    if itemsize == 4:
        return Blocks(32, 32)
    return Blocks(64, 128) if num_tokens <= MAX_DECODE_TOKENS else Blocks(128, 64, 8)
