"""Shrink and expand in Triton: a program works for up to BT tokens of one adapter, on tensor cores.

Sums are taken in a fixed order and every output element has one writer: the same inputs give the
same bits. Nothing on the host depends on the mix: programs of idle tiles return at once.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from kernels.lora.batch import LoraBatch, LoraWeights, TilePlan

BLOCK_ROWS = 16
BLOCK_COLUMNS = 128
BLOCK_HIDDEN = 128
SHRINK_WARPS, EXPAND_WARPS = 4, 4


@triton.jit
def lora_shrink_kernel(
    # read: tokens, rank rows, scales
    x,
    a,
    scales,
    # read: the plan
    order,
    tile_slot,
    tile_start,
    tile_len,
    pages,
    ranks,
    # written: partial sums [SPLIT, T, NS, max_rank]
    h,
    # sizes
    num_tokens,
    H,
    max_rank,
    max_pages,
    # strides
    stride_x,
    stride_a_page,
    stride_a_slice,
    stride_a_row,
    stride_scales,
    # meta
    COLUMN,
    NS: tl.constexpr,
    PR: tl.constexpr,
    BT: tl.constexpr,
    BR: tl.constexpr,
    BH: tl.constexpr,
    STEPS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    i_tile = tl.program_id(0)
    i_slice = tl.program_id(1)
    i_split = tl.program_id(2)
    slot = tl.load(tile_slot + i_tile)
    if slot < 0:
        return
    length = tl.load(tile_len + i_tile)
    rank = tl.load(ranks + slot)
    scale = tl.load(scales + slot.to(tl.int64) * stride_scales + COLUMN + i_slice)

    i_t = tl.arange(0, BT)
    m_t = i_t < length
    token = tl.load(order + tl.load(tile_start + i_tile) + i_t, mask=m_t, other=0).to(tl.int64)
    p_x = x + token[:, None] * stride_x
    p_h = h + ((i_split * num_tokens + token) * NS + i_slice)[:, None] * max_rank

    for b_r in range(0, rank, BR):
        i_r = b_r + tl.arange(0, BR)
        m_r = i_r < rank
        page = tl.load(pages + slot.to(tl.int64) * max_pages + i_r // PR, mask=m_r, other=-1)
        m_page = page >= 0
        o_row = page.to(tl.int64) * stride_a_page + i_slice * stride_a_slice
        p_a = a + (o_row + (i_r % PR) * stride_a_row)[:, None]
        acc = tl.zeros((BT, BR), dtype=tl.float32)
        for step in range(STEPS):
            i_h = (i_split * STEPS + step) * BH + tl.arange(0, BH)
            m_h = i_h < H
            b_x = tl.load(p_x + i_h[None, :], mask=m_t[:, None] & m_h[None, :], other=0.0)
            b_a = tl.load(p_a + i_h[None, :], mask=m_page[:, None] & m_h[None, :], other=0.0)
            if UPCAST:
                b_x = b_x.to(tl.float32)
                b_a = b_a.to(tl.float32)
            acc = tl.dot(b_x, tl.trans(b_a), acc, input_precision="ieee")
        tl.store(p_h + i_r[None, :], acc * scale, mask=m_t[:, None] & m_r[None, :])


@triton.jit
def lora_expand_kernel(
    # read: partial sums, rank rows
    h,
    b,
    # read: the plan
    order,
    tile_slot,
    tile_start,
    tile_len,
    pages,
    ranks,
    # read and written: [T, N]
    y,
    # sizes; a group has up to three slices, an absent one is 0 wide
    num_tokens,
    size_0,
    size_1,
    size_2,
    max_rank,
    max_pages,
    # strides
    stride_b_page,
    stride_b_row,
    stride_y,
    # meta
    NS: tl.constexpr,
    PR: tl.constexpr,
    BT: tl.constexpr,
    BR: tl.constexpr,
    BN: tl.constexpr,
    SPLIT: tl.constexpr,
    UPCAST: tl.constexpr,
):
    i_tile = tl.program_id(0)
    i_block = tl.program_id(1)
    slot = tl.load(tile_slot + i_tile)
    if slot < 0:
        return
    # Blocks are counted slice by slice, so that none crosses a border.
    i_slice, start, size = 0, 0, size_0
    if NS > 1:
        blocks_0 = tl.cdiv(size_0, BN)
        if i_block >= blocks_0:
            i_block -= blocks_0
            i_slice, start, size = 1, size_0, size_1
            if NS > 2:
                blocks_1 = tl.cdiv(size_1, BN)
                if i_block >= blocks_1:
                    i_block -= blocks_1
                    i_slice, start, size = 2, size_0 + size_1, size_2
    length = tl.load(tile_len + i_tile)
    rank = tl.load(ranks + slot)

    i_t = tl.arange(0, BT)
    m_t = i_t < length
    token = tl.load(order + tl.load(tile_start + i_tile) + i_t, mask=m_t, other=0).to(tl.int64)
    i_n = i_block * BN + tl.arange(0, BN)
    m_n = i_n < size
    o_n = start + i_n
    p_y = y + token[:, None] * stride_y + o_n[None, :]
    m_y = m_t[:, None] & m_n[None, :]

    acc = tl.zeros((BT, BN), dtype=tl.float32)
    for b_r in range(0, rank, BR):
        i_r = b_r + tl.arange(0, BR)
        m_r = i_r < rank
        page = tl.load(pages + slot.to(tl.int64) * max_pages + i_r // PR, mask=m_r, other=-1)
        p_b = b + (page.to(tl.int64) * stride_b_page + (i_r % PR) * stride_b_row)[:, None]
        b_b = tl.load(p_b + o_n[None, :], mask=(page >= 0)[:, None] & m_n[None, :], other=0.0)
        b_h = tl.zeros((BT, BR), dtype=tl.float32)
        m_h = m_t[:, None] & m_r[None, :]
        for i_split in tl.static_range(SPLIT):
            o_h = ((i_split * num_tokens + token) * NS + i_slice)[:, None] * max_rank
            b_h += tl.load(h + o_h + i_r[None, :], mask=m_h, other=0.0)
        if UPCAST:
            b_b = b_b.to(tl.float32)
        acc = tl.dot(b_h.to(b_b.dtype), b_b, acc, input_precision="ieee")
    b_y = tl.load(p_y, mask=m_y, other=0.0).to(tl.float32)
    tl.store(p_y, (b_y + acc).to(y.dtype.element_ty), mask=m_y)


def shrink(x: torch.Tensor, weights: LoraWeights, batch: LoraBatch, plan: TilePlan) -> torch.Tensor:
    """Sums of h over parts of H: [SPLIT, T, NS, max_rank] fp32, unwritten beyond a token's rank."""
    num_tokens, hidden = x.shape
    _, num_slices, rows_per_page, _ = weights.a.shape
    max_pages = batch.page_table.shape[1]
    block = min(BLOCK_HIDDEN, max(16, triton.next_power_of_2(hidden)))
    split = num_splits(num_tokens, hidden, block)
    max_rank = max_pages * rows_per_page
    h = x.new_empty((split, num_tokens, num_slices, max_rank), dtype=torch.float32)
    if num_tokens:
        lora_shrink_kernel[(plan.tile_slot.shape[0], num_slices, split)](
            x,
            weights.a,
            batch.scales,
            *_tables(plan),
            h,
            num_tokens,
            hidden,
            max_rank,
            max_pages,
            x.stride(0),
            *weights.a.stride()[:3],
            batch.scales.stride(0),
            weights.column,
            NS=num_slices,
            PR=rows_per_page,
            BT=plan.tokens_per_tile,
            BR=BLOCK_ROWS,
            BH=block,
            STEPS=triton.cdiv(triton.cdiv(hidden, block), split),
            UPCAST=x.device.type == "cpu",
            num_warps=SHRINK_WARPS,
        )
    return h


def expand(
    h: torch.Tensor, weights: LoraWeights, batch: LoraBatch, plan: TilePlan, y: torch.Tensor
) -> None:
    """y += Σ over splits of h · B, in place. h [SPLIT, T, NS, max_rank] fp32."""
    split, num_tokens, num_slices, max_rank = h.shape
    sizes = (*weights.slice_sizes, 0, 0)[:3]
    if num_tokens:
        num_blocks = sum(triton.cdiv(size, BLOCK_COLUMNS) for size in sizes)
        lora_expand_kernel[(plan.tile_slot.shape[0], num_blocks)](
            h,
            weights.b,
            *_tables(plan),
            y,
            num_tokens,
            *sizes,
            max_rank,
            batch.page_table.shape[1],
            *weights.b.stride()[:2],
            y.stride(0),
            NS=num_slices,
            PR=weights.b.shape[1],
            BT=plan.tokens_per_tile,
            BR=BLOCK_ROWS,
            BN=BLOCK_COLUMNS,
            SPLIT=split,
            UPCAST=y.device.type == "cpu",
            num_warps=EXPAND_WARPS,
        )


def num_splits(num_tokens: int, hidden: int, block: int) -> int:
    """Parts of H: enough programs to fill the device at few tokens. By shape, never by the mix."""
    steps = -(-hidden // block)
    wanted = 8 if num_tokens <= 64 else 4 if num_tokens <= 256 else 1
    return max(1, min(wanted, steps // 2))


def _tables(plan: TilePlan) -> tuple[torch.Tensor, ...]:
    return plan.order, plan.tile_slot, plan.tile_start, plan.tile_len, plan.pages, plan.ranks
