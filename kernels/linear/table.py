"""Block sizes by shape, as measured on one H200 (kernels/bench/LOG.md says with what result)."""

from dataclasses import dataclass

# Beyond, torch's matmul is as fast and writes no shares.
MAX_TOKENS = 128
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


def linear_blocks(num_tokens: int, hidden: int, width: int, itemsize: int) -> Blocks | None:
    """Narrow blocks, and as many shares of K as give every multiprocessor a program.

    None where torch's matmul is as fast: it leaves more of the device to what runs beside it.
    """
    if num_tokens > MAX_TOKENS:
        return None
    if itemsize == 4:
        return Blocks(32, 32, max(1, min(2, hidden // 64)))
    split = max(1, min(-(-NUM_PROGRAMS * 64 // width), hidden // 512))
    if num_tokens <= 16:
        return Blocks(64, 128, split)
    is_few = num_tokens <= 64
    if split == 1:
        # Tokens are re-read by every block: wide blocks, when there are enough.
        return Blocks(128, 128, 1) if is_few else Blocks(256, 64, 1, num_warps=8)
    if -(-width // 64) * split > NUM_PROGRAMS:
        # More programs than run at once would take their turns.
        return None
    return Blocks(64, 128, split) if is_few else Blocks(64, 64, split, num_stages=6)
