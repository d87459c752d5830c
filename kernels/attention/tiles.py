"""Sizes of the attention kernels' tiles: frozen from sweeps on an H200, chosen by shapes alone."""

import functools
import math
from dataclasses import dataclass

import torch

LOG2_E = math.log2(math.e)
# The interpreter has no processors; a few programs make it walk the loops over parts.
INTERPRETED_PROCESSORS = 3


@dataclass(frozen=True)
class DecodeTile:
    """block_n positions a step of a program; a sequence is split from min_split positions on."""

    block_n: int
    num_warps: int
    num_stages: int
    programs_per_processor: int
    min_split: int


@dataclass(frozen=True)
class PrefillTile:
    """block_m rows (query, head of the group) by block_n positions; a chunk's prefix is cut from
    min_split positions on.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    min_split: int


def decode_tile(num_rows: int, head_dim: int, element_bytes: int) -> DecodeTile:
    """num_rows: sequences times key heads."""
    if element_bytes == 4 or head_dim > 128:
        return DecodeTile(32, 4, 2, 2, 256)
    if num_rows < 64:
        return DecodeTile(64, 4, 5, 2, 512)
    return DecodeTile(32, 2, 7, 4, 1024)


def prefill_tile(head_dim: int, element_bytes: int) -> PrefillTile:
    if element_bytes == 4:
        return PrefillTile(32, 32, 4, 2, 256)
    if head_dim > 128:
        return PrefillTile(64, 32, 4, 2, 512)
    return PrefillTile(128, 64, 8, 7, 512)


def max_splits(num_seqs: int) -> int:
    """A power of two; bounds the scratch: 2048 partial rows of all heads, at least 8 a sequence."""
    return max(8, min(64, 2048 // (1 << (num_seqs - 1).bit_length())))


@functools.cache
def num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@dataclass(frozen=True)
class HopperDecodeTile:
    """num_stages of block_n positions are copied ahead."""

    block_n: int
    num_stages: int
    programs_per_processor: int
    min_split: int


def hopper_decode_tile(num_rows: int, head_dim: int) -> HopperDecodeTile:
    """num_rows: sequences times key heads."""
    if num_rows < 64:
        return HopperDecodeTile(128, 3, 1, 512)
    # 16 KiB of keys a step, of either head dim.
    return HopperDecodeTile(64 * 128 // head_dim, 3, 2, 1024)


@dataclass(frozen=True)
class HopperPrefillTile:
    """num_stages of block_n positions are copied ahead, and query_stages of a tile's queries."""

    block_n: int
    num_stages: int
    query_stages: int
    min_split: int


HOPPER_PREFILL_TILE = HopperPrefillTile(128, 2, 2, 512)
