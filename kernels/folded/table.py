"""Which expands are folded, and block sizes by shape: measured on one H200 (kernels/bench/LOG.md).

In prefill only SiLU·mul is: it saves writing and reading the widest output. The others' columns are
few; an expand in place is as fast or faster there.
"""

from kernels.lora.table import MAX_DECODE_TOKENS, MAX_MIXED_TOKENS, ExpandBlocks


def folds_narrow(num_tokens: int) -> bool:
    """Whether rope + KV write and add + norm take the expand with them."""
    return num_tokens <= MAX_DECODE_TOKENS


def silu_blocks(num_tokens: int, itemsize: int) -> ExpandBlocks:
    if itemsize == 4:
        return ExpandBlocks(32, 32)
    if num_tokens <= 16:
        return ExpandBlocks(64, 128, num_stages=2)
    if num_tokens <= 64:
        return ExpandBlocks(128, 32, num_stages=2)
    return ExpandBlocks(64, 64) if num_tokens <= MAX_MIXED_TOKENS else ExpandBlocks(64, 16)


def rope_blocks(num_tokens: int, itemsize: int) -> ExpandBlocks:
    if itemsize == 4:
        return ExpandBlocks(32, 32)
    if num_tokens <= 64:
        return ExpandBlocks(64, 128, num_stages=2)
    return ExpandBlocks(64, 32, num_stages=3)


def norm_blocks(num_tokens: int, itemsize: int) -> ExpandBlocks:
    if itemsize == 4:
        return ExpandBlocks(32, 32)
    return ExpandBlocks(64, 128, num_stages=2) if num_tokens <= 128 else ExpandBlocks(64, 64)
