"""Block sizes by shape, from sweeps on one H200 (kernels/bench/LOG.md says with what result).

The expand's blocks, and the shrink's beyond 256 tokens, follow kernels that were changed after the
last sweep: they are chosen by registers and bytes in flight, not yet timed.
"""

from dataclasses import dataclass

# Up to here a step is decode-shaped.
MAX_DECODE_TOKENS = 256
# Tokens in a tile from which they go on the tensor cores' first side, which is 64 long.
WIDE_TOKENS = 64


@dataclass(frozen=True)
class ShrinkBlocks:
    """rows x hidden of A a step; split: shares of H; programs: of all tiles together."""

    rows: int
    hidden: int
    split: int
    programs: int
    num_warps: int = 4
    num_stages: int = 3


@dataclass(frozen=True)
class ExpandBlocks:
    """columns of B a program; its first_rows in one step, then rows a step."""

    columns: int
    rows: int
    num_warps: int = 4
    num_stages: int = 1
    first_rows: int = 16


def tokens_per_tile(num_tokens: int) -> int:
    """A tile of 16, the least a tensor core takes, wastes least; one of 64 reads least twice."""
    return 16 if num_tokens <= MAX_DECODE_TOKENS else 64


def shrink_blocks(num_tokens: int, hidden: int, itemsize: int) -> ShrinkBlocks:
    """By shape alone: the mix of adapters is not known to the host."""
    if itemsize == 4:
        return ShrinkBlocks(32, 32, max(1, min(8, hidden // 256)), 132)
    if num_tokens <= MAX_DECODE_TOKENS:
        return ShrinkBlocks(64, 128, max(1, min(16, hidden // 512)), 528)
    # Shares of H while there are few tiles: each holds a row of every token, so not for many.
    most = max(1, 264 // -(-num_tokens // WIDE_TOKENS))
    return ShrinkBlocks(16, 128, max(1, min(hidden // 1024, most)), 528)


def expand_blocks(num_tokens: int, itemsize: int) -> ExpandBlocks:
    if itemsize == 4:
        return ExpandBlocks(32, 32)
    if num_tokens <= MAX_DECODE_TOKENS:
        return ExpandBlocks(64, 128)
    return ExpandBlocks(128, 16)
