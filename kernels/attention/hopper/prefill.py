"""The Gluon kernel and its host wrapper: one warp copies, two groups of four warps compute."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Sequence
from typing import Any

import torch
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from kernels.attention.chunks import MAX_ITEMS, MAX_PARTS, Cut, Launch, launch_of_any, launches
from kernels.attention.hopper.descriptors import descriptors
from kernels.attention.hopper.prefill_consume import consume
from kernels.attention.hopper.prefill_produce import produce
from kernels.attention.hopper.prefill_schedule import NUM_FIELDS
from kernels.attention.parts import new_parts
from kernels.attention.tickets import tickets
from kernels.attention.tiles import HOPPER_PREFILL_TILE, LOG2_E, HopperPrefillTile, num_processors
from kernels.launch import launch_options

# Rows (query, head of the group) of each of the two consumers.
ROWS = 64
gdc_wait = tl.extra.cuda.gdc_wait
gdc_launch_dependents = tl.extra.cuda.gdc_launch_dependents
# Registers of a thread: of the second consumer and of the copying warp; the first has the rest.
# Where chunks are cut, the copying warp has more to count.
NUM_REGISTERS = (232, 40)
NUM_REGISTERS_CUT = (224, 56)


# A slice of a step's table begins anywhere: no new kernel for that.
@gluon.jit(
    do_not_specialize=[
        "num_seqs",
        "num_tokens",
        "max_positions",
        "num_units",
        "num_slots",
        "stride_table",
    ],
    do_not_specialize_on_alignment=["block_tables", "query_start", "context_lens"],
)
def hopper_prefill_kernel(
    # read
    q_desc,
    k_desc,
    v_desc,
    block_tables,
    query_start,
    context_lens,
    # written
    out,
    partials,
    log_sums,
    counters,
    # sizes
    num_seqs,
    num_tokens,
    max_positions,
    num_units,
    num_slots,
    scale_log2,
    # strides
    stride_table,
    # meta: MIN_SPLIT 0 cuts no chunk
    HKV: gl.constexpr,
    GROUP: gl.constexpr,
    D: gl.constexpr,
    BS: gl.constexpr,
    ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    NUM_STAGES: gl.constexpr,
    QUERY_STAGES: gl.constexpr,
    MIN_SPLIT: gl.constexpr,
    MAX_ITEMS: gl.constexpr,
    MAX_PARTS: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
    PDL: gl.constexpr,
):
    """A program takes items: (tile of 2 · ROWS rows or part of one, key head), and copies ahead.

    A barrier that is full says that a stage may be read, an empty one that it may be copied to.
    """
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    shape: gl.constexpr = (HKV, GROUP, 2 * ROWS, BLOCK_N, MIN_SPLIT, MAX_ITEMS, MAX_PARTS)
    shared_q = gl.allocate_shared_memory(q_desc.dtype, [2 * QUERY_STAGES, ROWS, D], layout)
    shared_k = gl.allocate_shared_memory(q_desc.dtype, [NUM_STAGES, BLOCK_N, D], layout)
    shared_v = gl.allocate_shared_memory(q_desc.dtype, [NUM_STAGES, BLOCK_N, D], layout)
    slots = gl.allocate_shared_memory(gl.int32, [QUERY_STAGES * NUM_FIELDS, 1], barrier)
    q_full = gl.allocate_shared_memory(gl.int64, [QUERY_STAGES, 1], barrier)
    q_empty = gl.allocate_shared_memory(gl.int64, [QUERY_STAGES, 1], barrier)
    v_landed = gl.allocate_shared_memory(gl.int64, [1], barrier)
    k_full = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], barrier)
    k_empty = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], barrier)
    v_full = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], barrier)
    v_empty = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], barrier)
    for i in gl.static_range(QUERY_STAGES):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=2)
    mbarrier.init(v_landed, count=1)
    for i in gl.static_range(NUM_STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=2)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(v_empty.index(i), count=2)
    fence_async_shared()
    read = (query_start, context_lens, num_seqs, num_tokens, max_positions, num_units, num_slots)
    queries = (shared_q, q_full, q_empty, slots)
    stages = (shared_k, shared_v, k_full, k_empty, v_full, v_empty)
    copied = (q_desc, k_desc, v_desc, block_tables, stride_table, v_landed, counters)
    parts = (partials, log_sums, counters + 2)
    # What a former kernel writes is read from here on.
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    gl.warp_specialize(
        [
            (consume, (0, out, parts, scale_log2, queries, stages, shape)),
            (consume, (1, out, parts, scale_log2, queries, stages, shape)),
            (produce, (copied, read, queries, stages, shape, BS)),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )


def fits(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> bool:
    """Whether these kernels take the shapes, given a Hopper device."""
    block_size, num_kv_heads, head_dim = k_cache.shape[1:]
    group = q.shape[1] // num_kv_heads
    return (
        q.dtype in (torch.bfloat16, torch.float16)
        and head_dim in (64, 128)
        and block_size >= 16
        and block_size & (block_size - 1) == 0
        and group <= 8
        and group & (group - 1) == 0
        and k_cache.shape[0] * block_size < 2**31
        and all(stride % 8 == 0 for stride in q.stride()[:2])
        and all(x.data_ptr() % 16 == 0 for x in (q, k_cache, v_cache))
    )


def prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    chunks: Sequence[tuple[int, int]] | None,
    out: torch.Tensor,
    tile: HopperPrefillTile = HOPPER_PREFILL_TILE,
) -> None:
    """As kernels.attention.prefill.prefill, for shapes that fit."""
    num_kv_heads = k_cache.shape[2]
    group = q.shape[1] // num_kv_heads
    cut = Cut(2 * ROWS, tile.block_n, tile.min_split, group, num_kv_heads)
    if chunks is None:
        parts = [launch_of_any(cut, len(context_lens), len(q))]
    else:
        parts = launches(cut, chunks)
    for part in parts:
        tensors = (
            block_tables[part.first :],
            query_start[part.first :],
            context_lens[part.first :],
        )
        _launch(part, cut, tile, (q, k_cache, v_cache, *tensors), scale, out)


def _launch(
    part: Launch,
    cut: Cut,
    tile: HopperPrefillTile,
    read: tuple[torch.Tensor, ...],
    scale: float,
    out: torch.Tensor,
) -> None:
    q, k_cache, v_cache, block_tables, *lengths = read
    block_size, num_kv_heads, head_dim = k_cache.shape[1:]
    num_places = part.num_slots * num_kv_heads * 2
    q_block = [ROWS // cut.group, cut.group, 64]
    copied = descriptors(q, k_cache, v_cache, q_block, tile.block_n)
    parts = new_parts(q, num_places * ROWS, head_dim)
    written = (out, *parts, tickets(q.device, 2 + num_places))
    num_seqs, max_positions = part.last - part.first, block_tables.shape[1] * block_size
    sizes = (num_seqs, q.shape[0], max_positions, part.num_units, part.num_slots, scale * LOG2_E)
    hopper_prefill_kernel[(min(part.num_units * num_kv_heads, num_processors(q.device)),)](
        *copied,
        block_tables,
        *lengths,
        *written,
        *sizes,
        block_tables.stride(0),
        **_meta(part, cut, tile, k_cache),
        **launch_options(q.device),
    )


def _meta(part: Launch, cut: Cut, tile: HopperPrefillTile, k_cache: torch.Tensor) -> dict[str, Any]:
    block_size, num_kv_heads, head_dim = k_cache.shape[1:]
    consumer, producer = NUM_REGISTERS_CUT if part.num_slots else NUM_REGISTERS
    return {
        "HKV": num_kv_heads,
        "GROUP": cut.group,
        "D": head_dim,
        "BS": block_size,
        "ROWS": ROWS,
        "BLOCK_N": tile.block_n,
        "NUM_STAGES": tile.num_stages,
        "QUERY_STAGES": tile.query_stages,
        "MIN_SPLIT": tile.min_split if part.num_slots else 0,
        "MAX_ITEMS": MAX_ITEMS,
        "MAX_PARTS": MAX_PARTS,
        "CONSUMER_REGISTERS": consumer,
        "PRODUCER_REGISTERS": producer,
        "num_warps": 4,
    }
