"""Block sizes by shape, as measured on one H200 (kernels/bench/LOG.md says with what result)."""

from dataclasses import dataclass

# Beyond, the vendor's matmul is as fast and writes no shares.
MAX_TOKENS = 64
# About one a multiprocessor of an H200.
NUM_PROGRAMS = 128


@dataclass(frozen=True)
class Blocks:
    """columns x hidden of W a step; split: shares of K."""

    columns: int
    hidden: int
    split: int
    num_warps: int = 4
    num_stages: int = 4


def linear_blocks(num_tokens: int, hidden: int, width: int, itemsize: int) -> Blocks:
    """Narrow blocks, and as many shares of K as give every multiprocessor a program."""
    if itemsize == 4:
        return Blocks(32, 32, max(1, min(2, hidden // 64)))
    split = max(1, min(-(-NUM_PROGRAMS * 64 // width), hidden // 512))
    if num_tokens > 16 and split == 1:
        # Tokens are re-read by every block: wide blocks, when there are enough.
        return Blocks(128, 128, 1)
    if num_tokens > 16 and -(-width // 64) * split > NUM_PROGRAMS:
        # More programs than run one by one: smaller ones, two on a multiprocessor.
        return Blocks(64, 64, split, num_stages=6)
    return Blocks(64, 128, split)
