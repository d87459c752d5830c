"""What becomes of a tile: rows of the output, or of the scratch until all parts are there."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention.hopper.barrier import thread_barrier


@gluon.jit
def store_rows(out, b_out, token, num_rows, i_h, HKV: gl.constexpr, GROUP: gl.constexpr):
    """b_out [ROWS, D] to out [T, HQ, D]: num_rows rows, from a token's first head of i_h's on."""
    D: gl.constexpr = b_out.shape[1]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    b_out = gl.convert_layout(b_out.to(out.dtype.element_ty), layout)
    i_r = gl.arange(0, b_out.shape[0], gl.SliceLayout(1, layout))
    i_d = gl.arange(0, D, gl.SliceLayout(0, layout))
    i_token = (token + i_r // GROUP).to(gl.int64)
    offsets = (i_token * (HKV * GROUP) + i_h * GROUP + i_r % GROUP) * D
    gl.store(out + offsets[:, None] + i_d[None, :], b_out, mask=(i_r < num_rows)[:, None])


@gluon.jit
def store_part(parts, place, b_out, b_log, i_part, num_parts, stride_part: gl.constexpr):
    """Whether that was the last of a tile's parts to come: they may be added up then."""
    partials, log_sums, tickets_of = parts
    ROWS: gl.constexpr = b_out.shape[0]
    D: gl.constexpr = b_out.shape[1]
    i_r = gl.arange(0, ROWS, gl.SliceLayout(1, b_out.type.layout))
    i_d = gl.arange(0, D, gl.SliceLayout(0, b_out.type.layout))
    row = (place + i_part * stride_part).to(gl.int64) * ROWS
    gl.store(partials + row * D + (i_r * D)[:, None] + i_d[None, :], b_out)
    gl.store(log_sums + row + i_r, gl.convert_layout(b_log, i_r.type.layout))
    # Every thread's stores come before the ticket, whose release publishes them.
    thread_barrier()
    taken = gl.atomic_add(tickets_of + place, 1, sem="acq_rel", scope="gpu")
    thread_barrier()
    return taken == num_parts - 1


@gluon.jit
def add_parts(
    parts,
    place,
    num_parts,
    stride_part: gl.constexpr,
    ROWS: gl.constexpr,
    D: gl.constexpr,
):
    """Σ_p 2^log_sums[p] · partials[p] / Σ_p 2^… [ROWS, D], in order, past the L1 cache."""
    partials, log_sums, _ = parts
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [128 // D, D // 4], [4, 1], [1, 0])
    ROW: gl.constexpr = gl.SliceLayout(1, layout)
    i_r = gl.arange(0, ROWS, ROW)
    i_d = gl.arange(0, D, gl.SliceLayout(0, layout))
    b_top = gl.full([ROWS], float("-inf"), gl.float32, ROW)
    b_sum = gl.full([ROWS], 0.0, gl.float32, ROW)
    b_out = gl.full([ROWS, D], 0.0, gl.float32, layout)
    for i_part in range(0, num_parts):
        row = (place + i_part * stride_part).to(gl.int64) * ROWS
        b_log = gl.load(log_sums + row + i_r, cache_modifier=".cg")
        p_part = partials + row * D + (i_r * D)[:, None] + i_d[None, :]
        b_part = gl.load(p_part, cache_modifier=".cg")
        b_new = gl.maximum(b_top, b_log)
        b_weight = gl.exp2(b_log - b_new)
        b_shrink = gl.exp2(b_top - b_new)
        b_sum = b_sum * b_shrink + b_weight
        b_out = b_out * b_shrink[:, None] + b_part * b_weight[:, None]
        b_top = b_new
    return b_out / b_sum[:, None]
