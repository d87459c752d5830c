"""Decode attention for Hopper: a warp copies ahead over all parts, four warps compute.

Scores are K qᵀ and outputs Vᵀ pᵀ: positions and head dims are the tensor cores' long side, and the
few query heads of a key head their short one.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from kernels.attention.hopper.decode_consume import consume
from kernels.attention.hopper.decode_produce import produce
from kernels.attention.hopper.descriptors import descriptors
from kernels.attention.parts import new_parts
from kernels.attention.tickets import tickets
from kernels.attention.tiles import (
    LOG2_E,
    HopperDecodeTile,
    hopper_decode_tile,
    max_splits,
    num_processors,
)
from kernels.launch import launch_options

QUERY_STAGES = gl.constexpr(2)
PRODUCER_REGISTERS = 64
gdc_wait = tl.extra.cuda.gdc_wait
gdc_launch_dependents = tl.extra.cuda.gdc_launch_dependents


# A slice of a step's table begins anywhere: no new kernel for that.
@gluon.jit(
    do_not_specialize=["num_seqs", "max_positions", "stride_table"],
    do_not_specialize_on_alignment=["block_tables", "context_lens"],
)
def hopper_decode_kernel(
    # read
    q_desc,
    k_desc,
    v_desc,
    block_tables,
    context_lens,
    # written
    out,
    partials,
    log_sums,
    tickets_of,
    # sizes
    num_seqs,
    max_positions,
    scale_log2,
    # strides
    stride_table,
    # meta: GROUP query heads of a key head, in ROWS columns of a tensor core's tile
    HKV: gl.constexpr,
    GROUP: gl.constexpr,
    D: gl.constexpr,
    BS: gl.constexpr,
    MIN_SPLIT: gl.constexpr,
    MAX_SPLITS: gl.constexpr,
    BLOCK_SEQS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_PARTS: gl.constexpr,
    ROWS: gl.constexpr,
    NUM_STAGES: gl.constexpr,
    REGISTERS: gl.constexpr,
    PDL: gl.constexpr,
):
    """A program takes parts pid, pid + programs, …: (sequence, part, key head), heads fastest."""
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    shared_q = gl.allocate_shared_memory(q_desc.dtype, [QUERY_STAGES, ROWS, D], layout)
    shared_k = gl.allocate_shared_memory(q_desc.dtype, [NUM_STAGES, BLOCK_N, D], layout)
    shared_v = gl.allocate_shared_memory(q_desc.dtype, [NUM_STAGES, BLOCK_N, D], layout)
    shared_p = gl.allocate_shared_memory(q_desc.dtype, [ROWS, BLOCK_N], layout)
    q_full = gl.allocate_shared_memory(gl.int64, [QUERY_STAGES, 1], barrier)
    q_empty = gl.allocate_shared_memory(gl.int64, [QUERY_STAGES, 1], barrier)
    full = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], barrier)
    empty = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], barrier)
    for i in gl.static_range(QUERY_STAGES):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
    for i in gl.static_range(NUM_STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    fence_async_shared()
    read = (context_lens, num_seqs, max_positions)
    queries = (shared_q, q_full, q_empty)
    stages = (shared_k, shared_v, full, empty)
    copied = (q_desc, k_desc, v_desc, block_tables, stride_table)
    written = (out, partials, log_sums, tickets_of)
    # What a former kernel writes is read from here on.
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    gl.warp_specialize(
        [
            (
                consume,
                (
                    written,
                    scale_log2,
                    read,
                    queries,
                    stages,
                    shared_p,
                    HKV,
                    GROUP,
                    D,
                    BLOCK_SEQS,
                    MIN_SPLIT,
                    MAX_SPLITS,
                    BLOCK_PARTS,
                    v_desc,
                ),
            ),
            (
                produce,
                (
                    copied,
                    read,
                    queries,
                    stages,
                    HKV,
                    GROUP,
                    D,
                    BS,
                    BLOCK_SEQS,
                    MIN_SPLIT,
                    MAX_SPLITS,
                ),
            ),
        ],
        [1],
        [REGISTERS],
    )


def decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    max_context: int,
    out: torch.Tensor,
    tile: HopperDecodeTile | None = None,
) -> None:
    """As kernels.attention.decode.decode, for shapes that fit."""
    num_seqs, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    tile = tile or hopper_decode_tile(num_seqs * num_kv_heads, head_dim)
    splits = 1 if max_context <= tile.min_split else max_splits(num_seqs)
    parts = new_parts(q, num_seqs * num_heads * splits if splits > 1 else 0, head_dim)
    programs = num_processors(q.device) * tile.programs_per_processor
    meta = _meta(q, k_cache, splits, tile)
    copied = descriptors(q, k_cache, v_cache, [1, meta["ROWS"], 64], tile.block_n)
    read = (*copied, block_tables, context_lens)
    written = (out, *parts, tickets(q.device, num_seqs * num_kv_heads))
    sizes = (num_seqs, block_tables.shape[1] * block_size, scale * LOG2_E)
    stride = block_tables.stride(0)
    grid = (min(programs, num_seqs * num_kv_heads * splits),)
    options = launch_options(q.device)
    hopper_decode_kernel[grid](*read, *written, *sizes, stride, **meta, **options)


def _meta(
    q: torch.Tensor, k_cache: torch.Tensor, splits: int, tile: HopperDecodeTile
) -> dict[str, Any]:
    block_size, num_kv_heads = k_cache.shape[1:3]
    group, programs = q.shape[1] // num_kv_heads, tile.programs_per_processor
    return {
        "HKV": num_kv_heads,
        "GROUP": group,
        "D": q.shape[2],
        "BS": block_size,
        "MIN_SPLIT": tile.min_split,
        "MAX_SPLITS": splits,
        "BLOCK_SEQS": max(32, triton.next_power_of_2(q.shape[0])),
        "BLOCK_N": tile.block_n,
        "BLOCK_PARTS": 8,
        "ROWS": max(8, group),
        "NUM_STAGES": tile.num_stages,
        "REGISTERS": PRODUCER_REGISTERS,
        "num_warps": 4,
        "maxnreg": 256 // programs if programs > 1 else None,
    }
