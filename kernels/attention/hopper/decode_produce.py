"""The copying warp of decode: keys and values of one part after the other, stages ahead."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from kernels.attention.hopper.decode_parts import count_parts, find_part
from kernels.attention.hopper.pieces import pieces_of


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
    QUERY_STAGES: gl.constexpr = shared_q.shape[0]
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
        q_stage = number % QUERY_STAGES
        mbarrier.wait(q_empty.index(q_stage), ((number // QUERY_STAGES) & 1) ^ 1)
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
