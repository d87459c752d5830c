"""What is timed: the same adapters for ours and the peers, the bytes of the floor, the mixes."""

import pytest
import torch

from kernels.bench import cases
from kernels.bench.backends import MAX_FP8_ERROR, errors, peer_view, peer_work, to_fp8
from kernels.bench.cases import LAYER, Case, Point, floor_bytes, make_case, paged, reference
from kernels.bench.workloads import Group
from kernels.lora import add_lora

SMALL = Group(24, (12, 4, 8))


def small_case(rank: int = 16, num_tokens: int = 6, num_adapters: int = 3) -> Case:
    point = Point("qkv", rank, num_tokens, num_adapters)
    return make_case(point, 2, group=SMALL, dtype=torch.float32, device="cpu")


@pytest.mark.parametrize("rank", [8, 16, 64])
def test_the_pages_hold_the_same_adapters(rank: int) -> None:
    case = small_case(rank)
    pool = paged(case)
    for i, weights in enumerate(pool.weights):
        y = torch.zeros_like(case.y[i])
        add_lora(y, case.x[i], weights, pool.batch)
        torch.testing.assert_close(y, reference(case, i), rtol=1e-5, atol=1e-5)


def test_rows_in_fp8_are_the_same_adapters() -> None:
    case = small_case()
    pool = paged(case)
    y = torch.zeros_like(case.y[0])
    add_lora(y, case.x[0], to_fp8(pool.weights[0]), pool.batch)
    want = reference(case)
    assert 1e-3 < float((y - want).norm() / want.norm()) < MAX_FP8_ERROR


def test_floor_counts_each_byte_once() -> None:
    case = small_case()
    tensors = (case.a[0], case.b[0], case.x[0], case.y[0])
    elements = sum(tensor.numel() for tensor in tensors)
    assert floor_bytes(SMALL, 16, 6, 3) == 2 * elements


def test_floor_of_table_a_is_that_of_the_published_figures() -> None:
    total = sum(floor_bytes(group, 16, 64, 64) for group in LAYER.values())
    assert total / 4.44e6 == pytest.approx(39.8, abs=0.1)


def test_sets_leave_the_cache_behind() -> None:
    for point in cases.grid():
        size = floor_bytes(point.group, point.rank, point.num_tokens, point.num_adapters)
        sets = cases.num_sets(point)
        assert sets == cases.MAX_SETS or sets * size >= cases.ROTATED_BYTES


def test_grid_has_one_adapter_a_token_at_most() -> None:
    points = cases.grid()
    assert len(points) == len(set(points)) == 4 * 4 * 22
    assert all(point.num_adapters <= point.num_tokens for point in points)
    assert {p.num_adapters for p in points if p.num_tokens == 256} == {1, 4, 16, 64, 256}


@pytest.mark.parametrize(("num_tokens", "num_adapters"), [(1, 1), (64, 16), (2048, 4)])
def test_every_slot_is_used_alike(num_tokens: int, num_adapters: int) -> None:
    counts = torch.bincount(cases.token_slots(Point("o", 16, num_tokens, num_adapters)))
    assert counts.tolist() == [num_tokens // num_adapters] * num_adapters


class Peer:
    """Stands for kernels_peer.py's classes: reads the names that they read."""

    def calls(self, cs, exact=False):  # type: ignore[no-untyped-def]
        def call(i: int) -> None:
            for token, slot in enumerate(cs.tok.tolist()):
                h = (cs.a[i, slot] @ cs.x[i, token]).view(cs.s, cs.c["rank"])
                for s in range(cs.s):
                    low, high = cs.offsets[s], cs.offsets[s + 1]
                    cs.y[i, token, low:high] += cs.b[i, slot, low:high] @ h[s]

        return [lambda i=i: call(i) for i in range(cs.sets)]


def test_a_peer_is_held_against_the_reference() -> None:
    case, caches = small_case(), [{"stale": 1}]
    base = torch.randn(1, 24, 24)
    alone, pair = errors(lambda c, b: peer_work(Peer(), caches, c, b), case, base)
    assert alone < 1e-5 and pair < 1e-5
    assert caches == [{}]


def test_a_wrong_peer_shows() -> None:
    case = small_case()

    def half(c: Case, b: torch.Tensor):  # type: ignore[no-untyped-def]
        work = peer_work(Peer(), [], c, b)
        case.a.mul_(0.5)
        return work

    alone, pair = errors(half, case, torch.randn(1, 24, 24))
    assert alone > 0.1 and pair > 0.01


def test_a_peer_sees_what_its_harness_would_give() -> None:
    view = peer_view(small_case())
    assert (view.k, view.s, view.n_out, view.offsets) == (24, 3, 24, [0, 12, 16, 24])
    assert view.c == {"rank": 16, "slots": 3, "n": 3, "m": 6, "phase": "decode"}
