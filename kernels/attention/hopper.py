"""Prefill attention for Hopper in Gluon: copies, matmuls and softmax of different tiles overlap.

prefill.py computes the same for every other shape; this one takes bf16 and fp16, head dims 64 and
128, blocks of 16 positions or more, and groups of a power of two.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Sequence

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.attention.tiles import LOG2_E, num_processors

# Rows (query, head of the group) of each of the two consumers; positions of a step.
ROWS = 64
BLOCK_N = 128
NUM_STAGES = 2
# Registers of a thread: of the second consumer and of the copying warp; the first has the rest.
NUM_REGISTERS = (232, 40)


@gluon.jit
def item_of(number):
    """A program's number-th item. Every second round is dealt backwards.

    The long tiles come first, so whoever had the longest of a round gets the shortest of the next.
    """
    programs = gl.num_programs(0)
    place = gl.program_id(0)
    if number % 2 == 1:
        place = programs - 1 - place
    return number * programs + place


@gluon.jit
def tiles_of(query_start, i_seq, GROUP: gl.constexpr, ROWS: gl.constexpr):
    num_queries = gl.load(query_start + i_seq + 1) - gl.load(query_start + i_seq)
    return (num_queries * GROUP + 2 * ROWS - 1) // (2 * ROWS)


@gluon.jit
def find_sequence(tile, query_start, i_seq, before, GROUP: gl.constexpr, ROWS: gl.constexpr):
    """(sequence of the tile, tiles of the sequences before it), searched on from the last found."""
    num_tiles = tiles_of(query_start, i_seq, GROUP, ROWS)
    while tile >= before + num_tiles:
        before += num_tiles
        i_seq += 1
        num_tiles = tiles_of(query_start, i_seq, GROUP, ROWS)
    return i_seq, before


@gluon.jit
def find_rows(
    tile, query_start, context_lens, i_seq, before, GROUP: gl.constexpr, ROWS: gl.constexpr
):
    """(first row, queries, positions before them, positions that the tile's last row sees)."""
    num_queries = gl.load(query_start + i_seq + 1) - gl.load(query_start + i_seq)
    num_tiles = (num_queries * GROUP + 2 * ROWS - 1) // (2 * ROWS)
    first_row = (before + num_tiles - 1 - tile) * (2 * ROWS)
    prefix = gl.load(context_lens + i_seq) - num_queries
    end = prefix + gl.minimum((first_row + 2 * ROWS - 1) // GROUP + 1, num_queries)
    return first_row, num_queries, prefix, end


@gluon.jit
def copy_tile(
    desc,
    shared,
    landed,
    p_table,
    i_h,
    start,
    end,
    BS: gl.constexpr,
    PIECE: gl.constexpr,
    BLOCK_N: gl.constexpr,
    D: gl.constexpr,
):
    """Positions start to start + BLOCK_N, piece by piece; those behind end arrive as zeros.

    A piece is 64 columns of as many rows as lie together: the tile is stored by such columns.
    """
    mbarrier.expect(landed, BLOCK_N * D * 2)
    pieces = shared._reinterpret(desc.dtype, [D // 64 * (BLOCK_N // PIECE), PIECE, 64], desc.layout)
    for i in gl.static_range(BLOCK_N // PIECE):
        position = start + i * PIECE
        # No block: its rows lie before the cache, which the copy engine fills with zeros.
        page = gl.load(p_table + position // BS, mask=position < end, other=-1)
        row = page * BS + position % BS
        for half in gl.static_range(D // 64):
            tma.async_copy_global_to_shared(
                desc,
                [row, i_h * D + half * 64],
                landed,
                pieces.index(half * (BLOCK_N // PIECE) + i),
            )


@gluon.jit
def clear_rows(desc, shared, num_kept, PIECE: gl.constexpr, BLOCK_N: gl.constexpr, D: gl.constexpr):
    """Zeros behind the first num_kept rows, in the piece where they end; one warp."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [1, 1], [1, 0])
    pieces = shared._reinterpret(desc.dtype, [D // 64 * (BLOCK_N // PIECE), PIECE, 64], desc.layout)
    i_row = gl.arange(0, PIECE, gl.SliceLayout(1, layout))[:, None]
    for half in gl.static_range(D // 64):
        piece = pieces.index(half * (BLOCK_N // PIECE) + num_kept // PIECE)
        rows = piece.load(layout)
        piece.store(gl.where(i_row < num_kept % PIECE, rows, gl.full_like(rows, 0.0)))
    fence_async_shared()
    gl.thread_barrier()


@gluon.jit
def produce(
    copied,
    read,
    shared,
    HKV: gl.constexpr,
    GROUP: gl.constexpr,
    D: gl.constexpr,
    ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    NUM_STAGES: gl.constexpr,
    BS: gl.constexpr,
    PIECE: gl.constexpr,
):
    """The copying warp: queries of each tile, then its keys and values as stages come free."""
    q_desc, k_desc, v_desc, block_tables, stride_table, v_landed = copied
    query_start, context_lens, total = read
    shared_q, shared_k, shared_v, q_full, q_empty, k_full, k_empty, v_full, v_empty = shared
    i_seq = 0
    before = 0
    count = 0
    tails = 0
    for number in range((total + gl.num_programs(0) - 1) // gl.num_programs(0)):
        item = item_of(number)
        if item < total:
            i_h = item % HKV
            tile = item // HKV
            i_seq, before = find_sequence(tile, query_start, i_seq, before, GROUP, ROWS)
            first_row, _, _, end = find_rows(
                tile, query_start, context_lens, i_seq, before, GROUP, ROWS
            )
            p_table = block_tables + i_seq.to(gl.int64) * stride_table
            mbarrier.wait(q_empty, (number & 1) ^ 1)
            mbarrier.expect(q_full, 2 * ROWS * D * 2)
            token = gl.load(query_start + i_seq) + first_row // GROUP
            pieces = shared_q._reinterpret(
                q_desc.dtype, [2 * (D // 64), ROWS // GROUP, GROUP, 64], q_desc.layout
            )
            for i in gl.static_range(2):
                for half in gl.static_range(D // 64):
                    tma.async_copy_global_to_shared(
                        q_desc,
                        [token + i * (ROWS // GROUP), i_h * GROUP, half * 64],
                        q_full,
                        pieces.index(i * (D // 64) + half),
                    )
            for start in range(0, end, BLOCK_N):
                stage = count % NUM_STAGES
                phase = (count // NUM_STAGES) & 1
                k = shared_k.index(stage)
                v = shared_v.index(stage)
                mbarrier.wait(k_empty.index(stage), phase ^ 1)
                copy_tile(
                    k_desc, k, k_full.index(stage), p_table, i_h, start, end, BS, PIECE, BLOCK_N, D
                )
                mbarrier.wait(v_empty.index(stage), phase ^ 1)
                num_kept = end - start
                if (num_kept < BLOCK_N) & (num_kept % PIECE != 0):
                    # Another request's NaN may lie behind the end, and 0 · NaN is NaN.
                    copy_tile(v_desc, v, v_landed, p_table, i_h, start, end, BS, PIECE, BLOCK_N, D)
                    mbarrier.wait(v_landed, tails & 1)
                    tails += 1
                    clear_rows(v_desc, v, num_kept, PIECE, BLOCK_N, D)
                    mbarrier.arrive(v_full.index(stage))
                else:
                    copy_tile(
                        v_desc,
                        v,
                        v_full.index(stage),
                        p_table,
                        i_h,
                        start,
                        end,
                        BS,
                        PIECE,
                        BLOCK_N,
                        D,
                    )
                count += 1


@gluon.jit
def soften(s, b_max, b_sum, scale_log2):
    """One step of the running softmax: (weights, new maximum, new sum, factor of what was)."""
    b_top = gl.maximum(b_max, gl.max(s, 1) * scale_log2)
    b_p = gl.exp2(s * scale_log2 - b_top[:, None])
    b_shrink = gl.exp2(b_max - b_top)
    return b_p, b_top, b_sum * b_shrink + gl.sum(b_p, 1), b_shrink


@gluon.jit
def visible(s, start, b_position, end, S_LAYOUT: gl.constexpr):
    i_n = start + gl.arange(0, s.shape[1], gl.SliceLayout(0, S_LAYOUT))
    mask = (i_n[None, :] <= b_position[:, None]) & (i_n < end)[None, :]
    return gl.where(mask, s, float("-inf"))


@gluon.jit
def attend(
    q,
    shared_k,
    shared_v,
    k_full,
    k_empty,
    v_full,
    v_empty,
    b_p,
    b_max,
    b_sum,
    b_acc,
    b_position,
    begin,
    steps_end,
    end,
    count,
    scale_log2,
    BLOCK_N: gl.constexpr,
    NUM_STAGES: gl.constexpr,
    S_LAYOUT: gl.constexpr,
    O_LAYOUT: gl.constexpr,
    MASKED: gl.constexpr,
):
    """Steps begin to steps_end: scores of a step are made while the former's values are added.

    b_p are the former step's weights. count: steps that this consumer has taken before begin's.
    """
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    for step in range(begin, steps_end):
        stage = count % NUM_STAGES
        phase = (count // NUM_STAGES) & 1
        last_stage = (count - 1) % NUM_STAGES
        last_phase = ((count - 1) // NUM_STAGES) & 1
        mbarrier.wait(k_full.index(stage), phase)
        zeros = gl.full([b_acc.shape[0], BLOCK_N], 0.0, gl.float32, S_LAYOUT)
        s = warpgroup_mma(
            q, shared_k.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True
        )
        mbarrier.wait(v_full.index(last_stage), last_phase)
        b_acc = warpgroup_mma(b_p, shared_v.index(last_stage), b_acc, is_async=True)
        s = warpgroup_mma_wait(1, deps=(s,))
        mbarrier.arrive(k_empty.index(stage))
        if MASKED:
            s = visible(s, step * BLOCK_N, b_position, end, S_LAYOUT)
        b_w, b_max, b_sum, b_shrink = soften(s, b_max, b_sum, scale_log2)
        b_acc, b_p = warpgroup_mma_wait(0, deps=(b_acc, b_p))
        mbarrier.arrive(v_empty.index(last_stage))
        b_acc = b_acc * gl.convert_layout(b_shrink, gl.SliceLayout(1, O_LAYOUT))[:, None]
        b_p = gl.convert_layout(b_w.to(b_p.dtype), P_LAYOUT)
        count += 1
    return b_p, b_max, b_sum, b_acc, count


@gluon.jit
def consume(
    which: gl.constexpr,
    out,
    scale_log2,
    read,
    shared,
    HKV: gl.constexpr,
    GROUP: gl.constexpr,
    D: gl.constexpr,
    ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    NUM_STAGES: gl.constexpr,
):
    """Four warps that own ROWS rows of each tile."""
    query_start, context_lens, total = read
    shared_q, shared_k, shared_v, q_full, q_empty, k_full, k_empty, v_full, v_empty = shared
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    STORED: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    q = shared_q.index(which)
    i_seq = 0
    before = 0
    count = 0
    for number in range((total + gl.num_programs(0) - 1) // gl.num_programs(0)):
        item = item_of(number)
        if item < total:
            i_h = item % HKV
            tile = item // HKV
            i_seq, before = find_sequence(tile, query_start, i_seq, before, GROUP, ROWS)
            first_row, num_queries, prefix, end = find_rows(
                tile, query_start, context_lens, i_seq, before, GROUP, ROWS
            )
            first_row += which * ROWS
            # Positions that every row sees need no mask.
            seen = (prefix + first_row // GROUP + 1) // BLOCK_N
            steps = (end + BLOCK_N - 1) // BLOCK_N
            i_r = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
            b_position = prefix + i_r // GROUP
            b_max = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
            b_sum = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(1, S_LAYOUT))
            b_acc = gl.full([ROWS, D], 0.0, gl.float32, O_LAYOUT)

            stage = count % NUM_STAGES
            mbarrier.wait(q_full, number & 1)
            mbarrier.wait(k_full.index(stage), (count // NUM_STAGES) & 1)
            zeros = gl.full([ROWS, BLOCK_N], 0.0, gl.float32, S_LAYOUT)
            s = warpgroup_mma(
                q, shared_k.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True
            )
            s = warpgroup_mma_wait(0, deps=(s,))
            mbarrier.arrive(k_empty.index(stage))
            s = visible(s, 0, b_position, end, S_LAYOUT)
            b_w, b_max, b_sum, _ = soften(s, b_max, b_sum, scale_log2)
            b_p = gl.convert_layout(b_w.to(out.dtype.element_ty), P_LAYOUT)
            count += 1
            b_p, b_max, b_sum, b_acc, count = attend(
                q,
                shared_k,
                shared_v,
                k_full,
                k_empty,
                v_full,
                v_empty,
                b_p,
                b_max,
                b_sum,
                b_acc,
                b_position,
                1,
                seen,
                end,
                count,
                scale_log2,
                BLOCK_N,
                NUM_STAGES,
                S_LAYOUT,
                O_LAYOUT,
                False,
            )
            b_p, b_max, b_sum, b_acc, count = attend(
                q,
                shared_k,
                shared_v,
                k_full,
                k_empty,
                v_full,
                v_empty,
                b_p,
                b_max,
                b_sum,
                b_acc,
                b_position,
                gl.maximum(seen, 1),
                steps,
                end,
                count,
                scale_log2,
                BLOCK_N,
                NUM_STAGES,
                S_LAYOUT,
                O_LAYOUT,
                True,
            )
            mbarrier.arrive(q_empty)
            stage = (count - 1) % NUM_STAGES
            mbarrier.wait(v_full.index(stage), ((count - 1) // NUM_STAGES) & 1)
            b_acc = warpgroup_mma(b_p, shared_v.index(stage), b_acc, is_async=True)
            b_acc, b_p = warpgroup_mma_wait(0, deps=(b_acc, b_p))
            mbarrier.arrive(v_empty.index(stage))

            b_acc = b_acc / gl.convert_layout(b_sum, gl.SliceLayout(1, O_LAYOUT))[:, None]
            b_out = gl.convert_layout(b_acc.to(out.dtype.element_ty), STORED)
            i_o = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, STORED))
            i_d = gl.arange(0, D, gl.SliceLayout(0, STORED))
            token = (gl.load(query_start + i_seq) + i_o // GROUP).to(gl.int64)
            offsets = (token * HKV * GROUP + i_h * GROUP + i_o % GROUP) * D
            m_o = (i_o // GROUP < num_queries)[:, None]
            gl.store(out + offsets[:, None] + i_d[None, :], b_out, mask=m_o)


@gluon.jit(do_not_specialize=["total", "stride_table"])
def prefill_kernel(
    # read
    q_desc,
    k_desc,
    v_desc,
    block_tables,
    query_start,
    context_lens,
    # written
    out,
    # sizes
    total,
    scale_log2,
    # strides
    stride_table,
    # meta
    HKV: gl.constexpr,
    GROUP: gl.constexpr,
    D: gl.constexpr,
    BS: gl.constexpr,
    PIECE: gl.constexpr,
    ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    NUM_STAGES: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
):
    """A program takes items pid, …: (tile of 2 · ROWS rows, key head), and never waits for copies
    that could have begun: one warp copies ahead, into stages that two groups of warps empty."""
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    shared_q = gl.allocate_shared_memory(q_desc.dtype, [2, ROWS, D], layout)
    shared_k = gl.allocate_shared_memory(q_desc.dtype, [NUM_STAGES, BLOCK_N, D], layout)
    shared_v = gl.allocate_shared_memory(q_desc.dtype, [NUM_STAGES, BLOCK_N, D], layout)
    q_full = gl.allocate_shared_memory(gl.int64, [1], barrier)
    q_empty = gl.allocate_shared_memory(gl.int64, [1], barrier)
    v_landed = gl.allocate_shared_memory(gl.int64, [1], barrier)
    k_full = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], barrier)
    k_empty = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], barrier)
    v_full = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], barrier)
    v_empty = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], barrier)
    mbarrier.init(q_full, count=1)
    mbarrier.init(q_empty, count=2)
    mbarrier.init(v_landed, count=1)
    for i in gl.static_range(NUM_STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=2)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(v_empty.index(i), count=2)
    fence_async_shared()
    read = (query_start, context_lens, total)
    shared = (shared_q, shared_k, shared_v, q_full, q_empty, k_full, k_empty, v_full, v_empty)
    copied = (q_desc, k_desc, v_desc, block_tables, stride_table, v_landed)
    gl.warp_specialize(
        [
            (
                consume,
                (0, out, scale_log2, read, shared, HKV, GROUP, D, ROWS, BLOCK_N, NUM_STAGES),
            ),
            (
                consume,
                (1, out, scale_log2, read, shared, HKV, GROUP, D, ROWS, BLOCK_N, NUM_STAGES),
            ),
            (
                produce,
                (copied, read, shared, HKV, GROUP, D, ROWS, BLOCK_N, NUM_STAGES, BS, PIECE),
            ),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )


def fits(q: torch.Tensor, k_cache: torch.Tensor) -> bool:
    """Whether the shapes and the device are this kernel's."""
    block_size, num_kv_heads, head_dim = k_cache.shape[1:]
    group = q.shape[1] // num_kv_heads
    return (
        q.is_cuda
        and torch.cuda.get_device_capability(q.device)[0] == 9
        and q.dtype in (torch.bfloat16, torch.float16)
        and head_dim in (64, 128)
        and block_size >= 16
        and block_size & (block_size - 1) == 0
        and group <= 8
        and group & (group - 1) == 0
        and k_cache.shape[0] * block_size < 2**31
        and all(x % 8 == 0 for x in (q.stride(0), q.stride(1), q.storage_offset()))
    )


def prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    num_queries: Sequence[int],
    out: torch.Tensor,
) -> None:
    """As kernels.attention.prefill.prefill, for shapes that fit."""
    num_heads, head_dim = q.shape[1:]
    block_size, num_kv_heads = k_cache.shape[1:3]
    group = num_heads // num_kv_heads
    piece = min(block_size, BLOCK_N)
    flat = gl.NVMMASharedLayout(128, 16, 2)
    rows = [cache.view(-1, num_kv_heads * head_dim) for cache in (k_cache, v_cache)]
    q_block, q_layout = [ROWS // group, group, 64], gl.NVMMASharedLayout(128, 16, 3)
    num_tiles = sum(triton.cdiv(count * group, 2 * ROWS) for count in num_queries)
    total = num_tiles * num_kv_heads
    prefill_kernel[(min(total, num_processors(q.device)),)](
        TensorDescriptor(q, list(q.shape), list(q.stride()), q_block, q_layout),
        *(TensorDescriptor.from_tensor(x, [piece, 64], flat) for x in rows),
        block_tables,
        query_start,
        context_lens,
        out,
        total,
        scale * LOG2_E,
        block_tables.stride(0),
        HKV=num_kv_heads,
        GROUP=group,
        D=head_dim,
        BS=block_size,
        PIECE=piece,
        ROWS=ROWS,
        BLOCK_N=BLOCK_N,
        NUM_STAGES=NUM_STAGES,
        CONSUMER_REGISTERS=NUM_REGISTERS[0],
        PRODUCER_REGISTERS=NUM_REGISTERS[1],
        num_warps=4,
    )
