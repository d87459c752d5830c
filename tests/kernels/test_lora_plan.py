"""What a tile's list holds: each of its slots once, in whole steps of the tensor cores."""

import pytest
import torch

from kernels.bench.workloads import Group, make_pool, slot_ranks, token_slots
from kernels.lora.plan import plan_tiles
from kernels.lora.sizes import MMA_ROWS, NOBODY
from tests.kernels.conftest import HAS_CUDA

# The interpreter is for machines without CUDA.
DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(HAS_CUDA, reason="with CUDA it runs there")),
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")],
    ),
]


@pytest.mark.parametrize("rows_per_page", [1, 4, 8, 16, 32])
@pytest.mark.parametrize("num_tokens", [21, 300, 1100])
@pytest.mark.parametrize("device", DEVICES)
def test_a_slots_rows_begin_where_a_step_of_the_tensor_cores_does(
    num_tokens: int, rows_per_page: int, device: str
) -> None:
    """Or its sums would be cut another way in other company: the bits would depend on it."""
    pool = make_pool(
        (Group(16, (16,)),),
        token_slots("uniform", num_tokens, 6),
        ranks := slot_ranks("mixed-ranks", 6, 33),
        rows_per_page=rows_per_page,
        device=device,
    )
    plan = plan_tiles(pool.batch, rows_per_page)
    size = plan.sizes.tokens_per_tile
    tiles = zip(
        plan.entries.tolist(), plan.num_pages.tolist(), torch.split(plan.slots, size), strict=True
    )
    for entries, count, slots in tiles:
        pages = [(entry >> 16 & 0xFFFF, entry >> 8 & 0xFF, entry & 0xFF) for entry in entries]
        listed: dict[int, list[tuple[int, int]]] = {}
        for i, (slot, i_page, readable) in enumerate(pages[:count]):
            if slot != NOBODY:
                place = listed.setdefault(slot, [])
                assert place or i * rows_per_page % MMA_ROWS == 0
                assert i_page == len(place)
                place.append((i, readable))
        assert set(listed) == set(slots.tolist()) - {-1}
        for slot, place in listed.items():
            assert place[-1][0] - place[0][0] == len(place) - 1
            assert sum(readable for _, readable in place) == ranks[slot]
        assert count * rows_per_page % MMA_ROWS == 0


@pytest.mark.parametrize("device", DEVICES)
def test_tokens_are_walked_by_slot_as_they_came(device: str) -> None:
    for num_tokens in (1, 40, 257, 1025):
        slots = token_slots("uniform", num_tokens, 6)
        pool = make_pool((Group(16, (16,)),), slots, [8] * 6, device=device)
        plan = plan_tiles(pool.batch, 8)
        key = torch.tensor([slot if slot >= 0 else 6 for slot in slots])
        want = torch.sort(key, stable=True).indices
        assert plan.order.tolist() == want.tolist()
        assert plan.slots.tolist() == torch.tensor(slots)[want].tolist()
