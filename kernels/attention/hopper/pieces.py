"""A tile in shared memory as the copy engine fills it: piece by piece, by blocks of the cache."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared


@gluon.jit
def pieces_of(desc, shared, PIECE: gl.constexpr):
    """A tile [N, D] as it is stored: by 64 columns, and of those by PIECE rows: [.., PIECE, 64]."""
    num_pieces: gl.constexpr = shared.shape[0] * shared.shape[1] // (PIECE * 64)
    return shared._reinterpret(desc.dtype, [num_pieces, PIECE, 64], desc.layout)


@gluon.jit
def clear_rows(desc, shared, num_kept):
    """Zeros behind the first num_kept rows of shared [N, D], to the end of their last piece."""
    BLOCK_N: gl.constexpr = shared.shape[0]
    PIECE: gl.constexpr = desc.block_shape[0]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [gl.num_warps(), 1], [1, 0])
    strips = pieces_of(desc, shared, 16)
    i_row = gl.arange(0, 16, gl.SliceLayout(1, layout))[:, None]
    for i in range(num_kept // 16, (num_kept + PIECE - 1) // PIECE * (PIECE // 16)):
        for half in gl.static_range(shared.shape[1] // 64):
            strip = strips.index(half * (BLOCK_N // 16) + i)
            rows = strip.load(layout)
            is_kept = i * 16 + i_row < num_kept
            strip.store(gl.where(is_kept, rows, gl.full_like(rows, 0.0)))
    fence_async_shared()
