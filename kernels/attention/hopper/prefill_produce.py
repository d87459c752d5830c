"""The copying warp: a tile's queries, then its keys and values as stages come free."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from kernels.attention.hopper.pieces import clear_rows, pieces_of
from kernels.attention.hopper.prefill_schedule import (
    draw_item,
    end_draws,
    find_rows,
    find_sequence,
    first_item,
    tell,
)


@gluon.jit
def copy_tile(desc, shared, landed, table, column, start, end, BS: gl.constexpr):
    """Positions start on into shared [N, D], piece by piece; those behind end arrive as zeros."""
    BLOCK_N: gl.constexpr = shared.shape[0]
    D: gl.constexpr = shared.shape[1]
    PIECE: gl.constexpr = desc.block_shape[0]
    mbarrier.expect(landed, BLOCK_N * D * 2)
    pieces = pieces_of(desc, shared, PIECE)
    for i in gl.static_range(BLOCK_N // PIECE):
        position = start + i * PIECE
        # No block: its rows lie before the cache, which the copy engine fills with zeros.
        page = gl.load(table + position // BS, mask=position < end, other=-1)
        row = page * BS + position % BS
        for half in gl.static_range(D // 64):
            piece = pieces.index(half * (BLOCK_N // PIECE) + i)
            tma.async_copy_global_to_shared(desc, [row, column + half * 64], landed, piece)


@gluon.jit
def copy_queries(desc, shared_q, q_stage, landed, token, i_h, GROUP: gl.constexpr):
    """Tokens from token on, GROUP heads of each, into two of shared_q [.., ROWS, D]."""
    ROWS: gl.constexpr = shared_q.shape[1]
    D: gl.constexpr = shared_q.shape[2]
    shape: gl.constexpr = [D // 64, ROWS // GROUP, GROUP, 64]
    mbarrier.expect(landed, 2 * ROWS * D * 2)
    for i in gl.static_range(2):
        pieces = shared_q.index(2 * q_stage + i)._reinterpret(desc.dtype, shape, desc.layout)
        for half in gl.static_range(D // 64):
            place = [token + i * (ROWS // GROUP), i_h * GROUP, half * 64]
            tma.async_copy_global_to_shared(desc, place, landed, pieces.index(half))


@gluon.jit
def produce(
    copied,
    read,
    queries,
    stages,
    shape: gl.constexpr,
    BS: gl.constexpr,
):
    """count: steps so far, of all tiles; a stage's phase turns whenever count has gone round."""
    q_desc, k_desc, v_desc, block_tables, stride_table, v_landed, drawn = copied
    shared_q, q_full, q_empty, slots = queries
    shared_k, shared_v, k_full, k_empty, v_full, v_empty = stages
    HKV: gl.constexpr = shape[0]
    GROUP: gl.constexpr = shape[1]
    D: gl.constexpr = shared_k.shape[2]
    BLOCK_N: gl.constexpr = shared_k.shape[1]
    NUM_STAGES: gl.constexpr = shared_k.shape[0]
    PIECE: gl.constexpr = v_desc.block_shape[0]
    QUERY_STAGES: gl.constexpr = shared_q.shape[0] // 2
    total = read[5] * HKV
    count = 0
    tails = 0
    number = 0
    i_seq = 0
    before = 0
    before_slots = 0
    item = first_item()
    i_seq, before, before_slots = find_sequence(
        item // HKV, read, i_seq, before, before_slots, shape
    )
    while (item < total) & (i_seq < read[2]):
        next_item = draw_item(drawn)
        i_h = item % HKV
        position, begin, end, token, num_rows, slot, i_part, num_parts = find_rows(
            item // HKV, read, i_seq, before, before_slots, shape
        )
        table = block_tables + i_seq.to(gl.int64) * stride_table
        q_stage = number % QUERY_STAGES
        mbarrier.wait(q_empty.index(q_stage), ((number // QUERY_STAGES) & 1) ^ 1)
        tell(slots, q_stage, (i_h, position, begin, end, token, num_rows, slot, i_part, num_parts))
        copy_queries(q_desc, shared_q, q_stage, q_full.index(q_stage), token, i_h, GROUP)
        for start in range(begin, end, BLOCK_N):
            stage = count % NUM_STAGES
            phase = (count // NUM_STAGES) & 1
            k_full_now = k_full.index(stage)
            v_full_now = v_full.index(stage)
            v = shared_v.index(stage)
            mbarrier.wait(k_empty.index(stage), phase ^ 1)
            copy_tile(k_desc, shared_k.index(stage), k_full_now, table, i_h * D, start, end, BS)
            mbarrier.wait(v_empty.index(stage), phase ^ 1)
            num_kept = end - start
            if (num_kept < BLOCK_N) & (num_kept % PIECE != 0):
                # Another request's NaN may lie behind the end, and 0 · NaN is NaN.
                copy_tile(v_desc, v, v_landed, table, i_h * D, start, end, BS)
                mbarrier.wait(v_landed, tails & 1)
                tails += 1
                clear_rows(v_desc, v, num_kept)
                mbarrier.arrive(v_full_now)
            else:
                copy_tile(v_desc, v, v_full_now, table, i_h * D, start, end, BS)
            count += 1
        number += 1
        item = next_item
        i_seq, before, before_slots = find_sequence(
            item // HKV, read, i_seq, before, before_slots, shape
        )
    q_stage = number % QUERY_STAGES
    mbarrier.wait(q_empty.index(q_stage), ((number // QUERY_STAGES) & 1) ^ 1)
    # No key head: that was the last item.
    tell(slots, q_stage, (HKV,))
    mbarrier.arrive(q_full.index(q_stage))
    end_draws(drawn)
