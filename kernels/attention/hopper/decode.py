"""Decode attention for Hopper: a warp copies ahead over all parts, four warps compute.

Scores are K qᵀ and outputs Vᵀ pᵀ: positions and head dims are the tensor cores' long side, and the
few query heads of a key head their short one.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
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

from kernels.attention.hopper.parts import count_parts, find_part
from kernels.attention.hopper.produce import clear_rows, pieces_of
from kernels.attention.tickets import tickets
from kernels.attention.tiles import (
    LOG2_E,
    HopperDecodeTile,
    hopper_decode_tile,
    max_splits,
    num_processors,
)

NUM_QUERY_STAGES = gl.constexpr(2)
PRODUCER_REGISTERS = 64
# Its name in Triton 3.6, and since.
thread_barrier = getattr(gl, "thread_barrier", None) or gl.barrier
gdc_wait = tl.extra.cuda.gdc_wait


@gluon.jit
def copy_step(
    k_desc, v_desc, shared_k, shared_v, landed, table, column, start, end, BS: gl.constexpr
):
    """Positions start on, keys and values [N, D] of one head; blocks behind end arrive as zeros."""
    BLOCK_N: gl.constexpr = shared_k.shape[0]
    D: gl.constexpr = shared_k.shape[1]
    PIECE: gl.constexpr = k_desc.block_shape[0]
    mbarrier.expect(landed, 2 * BLOCK_N * D * 2)
    k_pieces = pieces_of(k_desc, shared_k, PIECE)
    v_pieces = pieces_of(v_desc, shared_v, PIECE)
    for i in gl.static_range(BLOCK_N // PIECE):
        position = start + i * PIECE
        page = gl.load(table + position // BS, mask=position < end, other=-1)
        row = page * BS + position % BS
        for half in gl.static_range(D // 64):
            place = [row, column + half * 64]
            piece = half * (BLOCK_N // PIECE) + i
            tma.async_copy_global_to_shared(k_desc, place, landed, k_pieces.index(piece))
            tma.async_copy_global_to_shared(v_desc, place, landed, v_pieces.index(piece))


@gluon.jit
def produce(
    copied,
    read,
    queries,
    stages,
    HKV: gl.constexpr,
    GROUP: gl.constexpr,
    D: gl.constexpr,
    BS: gl.constexpr,
    BLOCK_SEQS: gl.constexpr,
    MIN_SPLIT: gl.constexpr,
    MAX_SPLITS: gl.constexpr,
):
    q_desc, k_desc, v_desc, block_tables, stride_table = copied
    context_lens, num_seqs, max_positions = read
    shared_q, q_full, q_empty = queries
    shared_k, shared_v, full, empty = stages
    NUM_STAGES: gl.constexpr = shared_k.shape[0]
    BLOCK_N: gl.constexpr = shared_k.shape[1]
    ROWS: gl.constexpr = shared_q.shape[1]
    q_shape: gl.constexpr = [D // 64, 1, ROWS, 64]
    counted = count_parts(
        context_lens, num_seqs, max_positions, BLOCK_SEQS, MIN_SPLIT, MAX_SPLITS, BLOCK_N
    )
    total = gl.sum(counted[1], 0) * HKV
    count = 0
    for item in range(gl.program_id(0), total, gl.num_programs(0)):
        i_h = item % HKV
        i_seq, _, _, begin, end = find_part(
            item // HKV, counted, context_lens, max_positions, MIN_SPLIT, MAX_SPLITS, BLOCK_N
        )
        number = item // gl.num_programs(0)
        q_stage = number % NUM_QUERY_STAGES
        mbarrier.wait(q_empty.index(q_stage), ((number // NUM_QUERY_STAGES) & 1) ^ 1)
        mbarrier.expect(q_full.index(q_stage), ROWS * D * 2)
        pieces = shared_q.index(q_stage)._reinterpret(q_desc.dtype, q_shape, q_desc.layout)
        for half in gl.static_range(D // 64):
            place = [i_seq, i_h * GROUP, half * 64]
            tma.async_copy_global_to_shared(
                q_desc, place, q_full.index(q_stage), pieces.index(half)
            )
        table = block_tables + i_seq.to(gl.int64) * stride_table
        for start in range(begin, end, BLOCK_N):
            stage = count % NUM_STAGES
            mbarrier.wait(empty.index(stage), ((count // NUM_STAGES) & 1) ^ 1)
            copy_step(
                k_desc,
                v_desc,
                shared_k.index(stage),
                shared_v.index(stage),
                full.index(stage),
                table,
                i_h * D,
                start,
                end,
                BS,
            )
            count += 1


@gluon.jit
def add_parts(
    out,
    partials,
    log_sums,
    num_parts,
    GROUP: gl.constexpr,
    D: gl.constexpr,
    BLOCK_PARTS: gl.constexpr,
):
    """out[e] = Σ_p 2^log_sums[p, e // D] · partials[p, e] / Σ_p 2^…, in order, past L1."""
    SIZE: gl.constexpr = GROUP * D
    layout: gl.constexpr = gl.BlockedLayout([1, max(SIZE // 128, 1)], [1, 32], [1, 4], [1, 0])
    i_e = gl.arange(0, SIZE, gl.SliceLayout(0, layout))
    b_top = gl.full([SIZE], float("-inf"), gl.float32, gl.SliceLayout(0, layout))
    b_sum = gl.full([SIZE], 0.0, gl.float32, gl.SliceLayout(0, layout))
    b_out = gl.full([SIZE], 0.0, gl.float32, gl.SliceLayout(0, layout))
    for first in range(0, num_parts, BLOCK_PARTS):
        i_p = first + gl.arange(0, BLOCK_PARTS, gl.SliceLayout(1, layout))
        mask = (i_p < num_parts)[:, None] & (i_e < SIZE)[None, :]
        p_log = log_sums + i_p[:, None] * GROUP + (i_e // D)[None, :]
        b_log = gl.load(p_log, mask=mask, other=float("-inf"), cache_modifier=".cg")
        p_part = partials + i_p[:, None] * SIZE + i_e[None, :]
        b_part = gl.load(p_part, mask=mask, other=0.0, cache_modifier=".cg")
        b_new = gl.maximum(b_top, gl.max(b_log, 0))
        b_weight = gl.exp2(b_log - b_new[None, :])
        b_shrink = gl.exp2(b_top - b_new)
        b_sum = b_sum * b_shrink + gl.sum(b_weight, 0)
        b_out = b_out * b_shrink + gl.sum(b_weight * b_part, 0)
        b_top = b_new
    gl.store(out + i_e, (b_out / b_sum).to(out.dtype.element_ty))


@gluon.jit
def consume(
    written,
    scale_log2,
    read,
    queries,
    stages,
    shared_p,
    HKV: gl.constexpr,
    GROUP: gl.constexpr,
    D: gl.constexpr,
    BLOCK_SEQS: gl.constexpr,
    MIN_SPLIT: gl.constexpr,
    MAX_SPLITS: gl.constexpr,
    BLOCK_PARTS: gl.constexpr,
    v_desc,
):
    out, partials, log_sums, tickets_of = written
    context_lens, num_seqs, max_positions = read
    shared_q, q_full, q_empty = queries
    shared_k, shared_v, full, empty = stages
    NUM_STAGES: gl.constexpr = shared_k.shape[0]
    BLOCK_N: gl.constexpr = shared_k.shape[1]
    PIECE: gl.constexpr = v_desc.block_shape[0]
    ROWS: gl.constexpr = shared_q.shape[1]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    HEAD: gl.constexpr = gl.SliceLayout(0, LAYOUT)
    i_n = gl.arange(0, BLOCK_N, gl.SliceLayout(1, LAYOUT))
    i_d = gl.arange(0, D, gl.SliceLayout(1, LAYOUT))
    i_g = gl.arange(0, ROWS, HEAD)
    counted = count_parts(
        context_lens, num_seqs, max_positions, BLOCK_SEQS, MIN_SPLIT, MAX_SPLITS, BLOCK_N
    )
    total = gl.sum(counted[1], 0) * HKV
    count = 0
    for item in range(gl.program_id(0), total, gl.num_programs(0)):
        i_seq, i_part, num_parts, begin, end = find_part(
            item // HKV, counted, context_lens, max_positions, MIN_SPLIT, MAX_SPLITS, BLOCK_N
        )
        b_max = gl.full([ROWS], float("-inf"), gl.float32, HEAD)
        b_weights = gl.full([BLOCK_N, ROWS], 0.0, gl.float32, LAYOUT)
        b_acc = gl.full([D, ROWS], 0.0, gl.float32, LAYOUT)
        number = item // gl.num_programs(0)
        q_stage = number % NUM_QUERY_STAGES
        mbarrier.wait(q_full.index(q_stage), (number // NUM_QUERY_STAGES) & 1)
        q = shared_q.index(q_stage).permute((1, 0))
        for start in range(begin, end, BLOCK_N):
            stage = count % NUM_STAGES
            v = shared_v.index(stage)
            mbarrier.wait(full.index(stage), (count // NUM_STAGES) & 1)
            zeros = gl.full([BLOCK_N, ROWS], 0.0, gl.float32, LAYOUT)
            s = warpgroup_mma(shared_k.index(stage), q, zeros, use_acc=False, is_async=True)
            num_kept = end - start
            if (num_kept < BLOCK_N) & (num_kept % PIECE != 0):
                # Another request's NaN may lie behind the end, and 0 · NaN is NaN.
                clear_rows(v_desc, v, num_kept)
            s = warpgroup_mma_wait(0, deps=(s,))
            s = gl.where((i_n < num_kept)[:, None], s * scale_log2, float("-inf"))
            b_top = gl.maximum(b_max, gl.max(s, 0))
            b_p = gl.exp2(s - b_top[None, :])
            b_shrink = gl.exp2(b_max - b_top)
            shared_p.permute((1, 0)).store(b_p.to(out.dtype.element_ty))
            fence_async_shared()
            b_weights = b_weights * b_shrink[None, :] + b_p
            b_acc = b_acc * b_shrink[None, :]
            b_max = b_top
            thread_barrier()
            b_acc = warpgroup_mma(v.permute((1, 0)), shared_p.permute((1, 0)), b_acc, is_async=True)
            b_acc = warpgroup_mma_wait(0, deps=(b_acc,))
            mbarrier.arrive(empty.index(stage))
            count += 1
        mbarrier.arrive(q_empty.index(q_stage))
        b_sum = gl.sum(b_weights, 0)
        # A padded sequence (length 0) gets zeros: finite, and nobody reads them.
        b_acc = b_acc / gl.where(b_sum > 0, b_sum, 1.0)[None, :]

        i_row = (i_seq * HKV + item % HKV).to(gl.int64)
        offsets = i_g[None, :] * D + i_d[:, None]
        m_out = (i_g < GROUP)[None, :] & (i_d < D)[:, None]
        if num_parts == 1:
            p_out = out + i_row * (GROUP * D) + offsets
            gl.store(p_out, b_acc.to(out.dtype.element_ty), mask=m_out)
        else:
            i_place = i_row * MAX_SPLITS + i_part
            gl.store(partials + i_place * (GROUP * D) + offsets, b_acc, mask=m_out)
            gl.store(log_sums + i_place * GROUP + i_g, b_max + gl.log2(b_sum), mask=i_g < GROUP)
            # Every thread's stores come before the ticket, whose release publishes them.
            thread_barrier()
            taken = gl.atomic_add(tickets_of + i_row, 1, sem="acq_rel", scope="gpu")
            if taken == num_parts - 1:
                thread_barrier()
                add_parts(
                    out + i_row * (GROUP * D),
                    partials + i_row * (MAX_SPLITS * GROUP * D),
                    log_sums + i_row * (MAX_SPLITS * GROUP),
                    num_parts,
                    GROUP,
                    D,
                    BLOCK_PARTS,
                )
                gl.store(tickets_of + i_row, 0)


# A slice of a step's table begins anywhere: no new kernel for that.
@gluon.jit(
    do_not_specialize=["num_seqs", "max_positions", "stride_table"],
    do_not_specialize_on_alignment=["block_tables", "context_lens"],
)
def decode_kernel(
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
):
    """A program takes parts pid, pid + programs, …: (sequence, part, key head), heads fastest."""
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    shared_q = gl.allocate_shared_memory(q_desc.dtype, [NUM_QUERY_STAGES, ROWS, D], layout)
    shared_k = gl.allocate_shared_memory(q_desc.dtype, [NUM_STAGES, BLOCK_N, D], layout)
    shared_v = gl.allocate_shared_memory(q_desc.dtype, [NUM_STAGES, BLOCK_N, D], layout)
    shared_p = gl.allocate_shared_memory(q_desc.dtype, [ROWS, BLOCK_N], layout)
    q_full = gl.allocate_shared_memory(gl.int64, [NUM_QUERY_STAGES, 1], barrier)
    q_empty = gl.allocate_shared_memory(gl.int64, [NUM_QUERY_STAGES, 1], barrier)
    full = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], barrier)
    empty = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], barrier)
    for i in gl.static_range(NUM_QUERY_STAGES):
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
    gdc_wait()
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
    group = num_heads // num_kv_heads
    tile = tile or hopper_decode_tile(num_seqs * num_kv_heads, head_dim)
    splits = 1 if max_context <= tile.min_split else max_splits(num_seqs)
    num_parts = num_seqs * num_kv_heads * splits
    scratch = num_parts * group if splits > 1 else 0
    partials = q.new_empty((scratch, head_dim), dtype=torch.float32)
    log_sums = q.new_empty((scratch,), dtype=torch.float32)
    programs = num_processors(q.device) * tile.programs_per_processor
    rows = max(8, group)
    flat = gl.NVMMASharedLayout(128, 16, 2)
    piece = [min(block_size, tile.block_n), 64]
    caches = [cache.view(-1, num_kv_heads * head_dim) for cache in (k_cache, v_cache)]
    q_layout = gl.NVMMASharedLayout(128, 16, 3)
    decode_kernel[(min(programs, num_parts),)](
        TensorDescriptor(q, list(q.shape), list(q.stride()), [1, rows, 64], q_layout),
        *(TensorDescriptor.from_tensor(cache, piece, flat) for cache in caches),
        block_tables,
        context_lens,
        out,
        partials,
        log_sums,
        tickets(q.device, num_seqs * num_kv_heads),
        num_seqs,
        block_tables.shape[1] * block_size,
        scale * LOG2_E,
        block_tables.stride(0),
        HKV=num_kv_heads,
        GROUP=group,
        D=head_dim,
        BS=block_size,
        MIN_SPLIT=tile.min_split,
        MAX_SPLITS=splits,
        BLOCK_SEQS=max(32, triton.next_power_of_2(num_seqs)),
        BLOCK_N=tile.block_n,
        BLOCK_PARTS=8,
        ROWS=rows,
        NUM_STAGES=tile.num_stages,
        REGISTERS=PRODUCER_REGISTERS,
        num_warps=4,
        maxnreg=256 // tile.programs_per_processor if tile.programs_per_processor > 1 else None,
        launch_pdl=True,
    )
