"""Block sizes by shape, from sweeps on one H200 (kernels/bench/LOG.md says with what result)."""

from dataclasses import dataclass

# Up to here a step is decode-shaped.
MAX_DECODE_TOKENS = 256
# Up to here it may be decodes of many adapters with a prompt among them: narrow tiles, in which few
# adapters meet, and lists of h.
MAX_MIXED_TOKENS = 1024
# Tokens in a tile from which they go on the tensor cores' first side, which is 64 long.
WIDE_TOKENS = 64
# Rows that a program lists, and how many behind a list's end a reader's block may reach.
LIST_ROWS, LIST_MARGIN = 128, 256


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
    """columns of a program (rope: of each half of a head); rank rows of a step, at most 256."""

    columns: int
    rows: int
    num_warps: int = 4
    num_stages: int = 1


def tokens_per_tile(num_tokens: int) -> int:
    """Few while there are few tokens, or a few programs walk the rows of all their adapters one
    after another; beyond, many read a row twice less often.
    """
    if num_tokens <= 32:
        return 8
    return 16 if num_tokens <= MAX_MIXED_TOKENS else 64


def shrinks_first(num_tokens: int, hidden: int, width: int) -> bool:
    """Whether the shrink beside a base matmul of hidden x width is launched before it.

    After it the matmul has the device first and the shrink fills what is left. But where several
    waves of a short matmul leave nothing, the shrink would only begin when they end.
    """
    return 64 < num_tokens <= MAX_MIXED_TOKENS and hidden * width <= 2**25


def shrink_blocks(num_tokens: int, hidden: int, itemsize: int) -> ShrinkBlocks:
    """By shape alone: the mix of adapters is not known to the host.

    Beyond MAX_MIXED_TOKENS in one share: its readers take no sum.
    """
    is_narrow = num_tokens <= MAX_MIXED_TOKENS
    if itemsize == 4:
        return ShrinkBlocks(32, 32, max(1, min(8, hidden // 256)) if is_narrow else 1, 132)
    split = max(1, min(8, hidden // 1024))
    if num_tokens <= 16:
        return ShrinkBlocks(32, 128, max(1, min(16, hidden // 512)), 528)
    if is_narrow:
        return ShrinkBlocks(64, 128, split, 528, num_stages=3 if num_tokens <= 64 else 4)
    return ShrinkBlocks(16, 128, 1, 264, num_stages=4)


def expand_blocks(num_tokens: int, itemsize: int) -> ExpandBlocks:
    if itemsize == 4:
        return ExpandBlocks(32, 32)
    if num_tokens <= 16:
        return ExpandBlocks(64, 128, num_stages=2)
    return ExpandBlocks(64, 64) if num_tokens <= MAX_MIXED_TOKENS else ExpandBlocks(128, 16)
