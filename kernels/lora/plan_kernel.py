"""The plan of a step in Triton: tokens in the order of their slots, the pages of each tile."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_tokens", "num_slots"])
def sort_tokens_kernel(
    # read: [T]
    token_slot,
    # written: [T] each
    order,
    slots,
    # sizes
    num_tokens,
    num_slots,
    # meta
    BT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A token's place is the number of those before it: by slot, then as they came; none last."""
    i_all = tl.arange(0, BLOCK)
    all_slots = tl.load(token_slot + i_all, mask=i_all < num_tokens, other=2147483647)
    all_slots = tl.where((all_slots < 0) | (all_slots >= num_slots), num_slots, all_slots)
    all_slots = tl.where(i_all < num_tokens, all_slots, 2147483647)
    i_t = tl.program_id(0) * BT + tl.arange(0, BT)
    slot = tl.load(token_slot + i_t, mask=i_t < num_tokens, other=-1)
    slot = tl.where((slot < 0) | (slot >= num_slots), num_slots, slot)
    before = (all_slots[None, :] < slot[:, None]) | (
        (all_slots[None, :] == slot[:, None]) & (i_all[None, :] < i_t[:, None])
    )
    place = tl.sum(before.to(tl.int32), 1)
    tl.store(order + place, i_t, mask=i_t < num_tokens)
    tl.store(slots + place, tl.where(slot < num_slots, slot, -1), mask=i_t < num_tokens)


@triton.jit(do_not_specialize=["num_tokens", "pool_pages", "capacity", "max_pages"])
def list_pages_kernel(
    # read: slots in their order [T], tables by slot, owners by page
    slots,
    page_table,
    ranks,
    page_owner,
    # written: [tiles, capacity], [tiles]
    entries,
    num_pages,
    # sizes
    num_tokens,
    max_pages,
    pool_pages,
    capacity,
    # meta
    PR: tl.constexpr,
    TILE: tl.constexpr,
    ALIGN: tl.constexpr,
    NOBODY: tl.constexpr,
):
    """Lists, for each slot of the tile once, its pages in rank order, foreign ones as empty.

    A slot's list is filled up with pages of nobody to ALIGN of them: its rows begin where a step of
    the tensor cores begins, so that its sums are cut the same way whoever comes before it.
    """
    i_tile = tl.program_id(0)
    i_t = i_tile * TILE + tl.arange(0, TILE)
    m_t = i_t < num_tokens
    slot = tl.load(slots + i_t, mask=m_t, other=-1)
    slot_before = tl.load(slots + i_t - 1, mask=m_t & (tl.arange(0, TILE) > 0), other=-1)
    is_first = (slot >= 0) & (slot != slot_before)
    slot = tl.where(is_first, slot, 0).to(tl.int64)
    rank = tl.load(ranks + slot, mask=is_first, other=0)
    rank = tl.minimum(tl.maximum(rank, 0), max_pages * PR)
    count = tl.cdiv(rank, PR * ALIGN) * ALIGN
    start = tl.cumsum(count, 0) - count
    tl.store(num_pages + i_tile, tl.sum(count, 0))
    p_entry = entries + i_tile * capacity + start
    for i_page in range(tl.max(count, 0)):
        m_page = i_page < count
        is_page = i_page * PR < rank
        page = tl.load(page_table + slot * max_pages + i_page, mask=is_page, other=-1)
        inside = (page >= 0) & (page < pool_pages)
        owner = tl.load(page_owner + page, mask=is_page & inside, other=-1)
        owned = inside & (owner == slot)
        page = tl.where(owned, page, 0).to(tl.int64)
        readable = tl.where(owned, tl.minimum(rank - i_page * PR, PR), 0)
        entry = (page << 32) | (slot << 16) | (i_page << 8) | readable
        entry = tl.where(is_page, entry, NOBODY << 16)
        tl.store(p_entry + i_page, entry, mask=m_page)
