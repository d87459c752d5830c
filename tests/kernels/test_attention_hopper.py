"""The Gluon kernels of attention: no interpreter runs them, so they are held on the GPU alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.kernels.conftest import HAS_CUDA, Target
from tests.kernels.test_attention import SCALE, AnyStep, Step, make_step, naive
from tests.kernels.tolerances import assert_close

IS_HOPPER = HAS_CUDA and torch.cuda.get_device_capability()[0] == 9
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU"),
]
BF16, FP16 = Target("cuda", torch.bfloat16), Target("cuda", torch.float16)

# Few, because each is compiled: both head dims, groups and blocks from the smallest to the largest.
SHAPES = [
    pytest.param(BF16, 128, 16, (8, 2), id="gpu-bf16-128-16-group4"),
    pytest.param(FP16, 64, 64, (8, 1), id="gpu-fp16-64-64-group8"),
    pytest.param(BF16, 128, 256, (2, 2), id="gpu-bf16-128-256-group1"),
]
# A compiled one, for what does not depend on the shape.
USUAL: dict[str, Any] = {"head_dim": 128, "block_size": 16, "heads": (8, 2)}


def run_prefill(step: Step, min_split: int = 512, out: torch.Tensor | None = None) -> torch.Tensor:
    """Into out, or a new tensor of q's shape."""
    from kernels.attention import hopper
    from kernels.attention.tiles import HOPPER_PREFILL_TILE

    assert hopper.fits(step.q, step.k_cache, step.v_cache)
    out = torch.empty_like(step.q) if out is None else out
    tensors = (step.q, step.k_cache, step.v_cache, step.block_tables, step.query_start)
    tile = replace(HOPPER_PREFILL_TILE, min_split=min_split)
    hopper.prefill(*tensors, step.context_lens, SCALE, step.sequences, out, tile)
    return out


def run_decode(step: Step, min_split: int = 128) -> torch.Tensor:
    from kernels.attention import hopper
    from kernels.attention.tiles import HopperDecodeTile

    assert hopper.fits(step.q, step.k_cache, step.v_cache)
    out = torch.empty_like(step.q)
    longest = max(positions for _, positions in step.sequences)
    tensors = (step.q, step.k_cache, step.v_cache, step.block_tables, step.context_lens)
    hopper.decode(*tensors, SCALE, longest, out, HopperDecodeTile(64, 4, 1, min_split))
    return out


@pytest.mark.parametrize(("target", "head_dim", "block_size", "heads"), SHAPES)
def test_prefill_equals_position_by_position(
    target: Target, head_dim: int, block_size: int, heads: tuple[int, int]
) -> None:
    """Chunks longer and shorter than a tile, with and without prefix, ends anywhere in a block."""
    sequences = ((129, 129), (1, 1), (7, 300), (64, 64), (40, 295), (3, 128), (200, 333))
    step = make_step(sequences, 0, target, head_dim=head_dim, block_size=block_size, heads=heads)
    assert_close(run_prefill(step), naive(step), target.dtype)


def test_prompts_of_any_length() -> None:
    """A sequence's last block holds 1 to 16 positions, and NaN behind them."""
    for length in range(1, 20):
        step = make_step(((length, length),), 0, BF16, **USUAL)
        assert_close(run_prefill(step), naive(step), torch.bfloat16)


def test_more_tiles_than_processors() -> None:
    """Every program draws several, of sequences of unlike lengths."""
    sequences = tuple((60 + 37 * i, 75 + 41 * i) for i in range(12))
    step = make_step(sequences, 0, BF16, **USUAL)
    assert_close(run_prefill(step), naive(step), torch.bfloat16)


# Some cut at 128 positions, into two parts and more; rows of both consumers, of one, of two tiles;
# parts that end with the prefix; some too short to be cut.
CUT = ((1, 900), (16, 1024), (40, 650), (70, 300), (17, 145), (5, 261), (30, 30), (200, 420))


@pytest.mark.parametrize(("target", "head_dim", "block_size", "heads"), SHAPES)
def test_a_cut_prefix_is_the_sum_of_its_parts(
    target: Target, head_dim: int, block_size: int, heads: tuple[int, int]
) -> None:
    step = make_step(CUT, 0, target, head_dim=head_dim, block_size=block_size, heads=heads)
    got = run_prefill(step, 128)
    assert_close(got, naive(step), target.dtype)
    assert torch.equal(run_prefill(step, 128), got)


def test_neighbours_of_a_chunk_change_no_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut or not, beside chunks that are and are not, in one launch and in several."""
    step = make_step(CUT, 0, BF16, **USUAL)
    together = run_prefill(step, 128)
    first = 0
    for row, (queries, _) in enumerate(CUT):
        last = first + queries
        alone = Step(
            step.q[first:last],
            step.k_cache,
            step.v_cache,
            step.block_tables[row : row + 1],
            step.query_start[row : row + 2] - first,
            step.context_lens[row : row + 1],
            CUT[row : row + 1],
            0,
        )
        assert torch.equal(run_prefill(alone, 128), together[first:last])
        first = last
    monkeypatch.setattr("kernels.attention.chunks.MAX_CUT_ITEMS", 30)
    assert torch.equal(run_prefill(step, 128), together)


# What the host says of chunks of (3, 700) and (120, 500): more and fewer tiles and parts.
WRONG: tuple[tuple[tuple[int, int], ...], ...] = (
    ((120, 500), (3, 700)),
    ((1, 1), (1, 1)),
    ((100, 100), (300, 3000)),
)


def test_wrong_hints_stay_in_their_step() -> None:
    """They end, write rows of out alone, and leave the next step's counters clean."""
    step = make_step(((3, 700), (120, 500)), 0, BF16, **USUAL)
    want = run_prefill(step, 128)
    assert_close(want, naive(step), torch.bfloat16)
    for told in WRONG:
        kept = torch.full((246, *step.q.shape[1:]), 7.0).to(step.q)
        run_prefill(Step(**(vars(step) | {"sequences": told})), 128, kept)
        assert bool((kept[123:] == 7.0).all())
        assert torch.equal(run_prefill(step, 128), want)


def test_lengths_that_exceed_the_step_stay_inside() -> None:
    """query_start behind the last token, a length behind the table's end, one of nothing."""
    step = make_step(((3, 700), (120, 500), (9, 20)), 0, BF16, **USUAL)
    kept = torch.full((264, *step.q.shape[1:]), 7.0).to(step.q)
    step.query_start[3] = 250
    step.context_lens.copy_(torch.tensor([100_000, 0, -5], dtype=torch.int32))
    run_prefill(step, 128, kept)
    torch.cuda.synchronize()
    assert bool((kept[132:] == 7.0).all())


@pytest.mark.parametrize(("target", "head_dim", "block_size", "heads"), SHAPES)
def test_decode_equals_position_by_position(
    target: Target, head_dim: int, block_size: int, heads: tuple[int, int]
) -> None:
    """One part and many, ends anywhere in a block."""
    sequences = tuple((1, n) for n in (1, 7, 64, 65, 128, 129, 300, 777, 1500, 16, 31, 255))
    step = make_step(
        sequences, len(sequences), target, head_dim=head_dim, block_size=block_size, heads=heads
    )
    assert_close(run_decode(step), naive(step), target.dtype)
    assert torch.equal(run_decode(step), run_decode(step))


def test_neighbours_of_a_decode_change_no_bits() -> None:
    sequences = ((1, 700), (1, 90), (1, 170))
    step = make_step(sequences, 3, BF16, **USUAL)
    alone = run_decode(step)[0]
    step.context_lens[1:] = torch.tensor([3, 0], dtype=torch.int32)
    step.block_tables[2] = -1
    got = run_decode(step)
    assert torch.equal(got[0], alone)
    assert bool(torch.isfinite(got).all())


def test_a_step_of_decodes_and_chunks() -> None:
    sequences = ((1, 530), (1, 18), (1, 1), (50, 50), (17, 200))
    step = make_step(sequences, 3, BF16, **USUAL)
    assert_close(step.run(), naive(step), torch.bfloat16)


def test_one_captured_graph_serves_any_lengths() -> None:
    sequences = ((1, 3000),) * 3
    step = make_step(sequences, 3, BF16, **USUAL)
    step.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step.run()
    for lens in ((3000, 3, 256), (1, 0, 2999), (600, 600, 600), (3000, 3000, 3000)):
        step.context_lens.copy_(torch.tensor(lens, dtype=torch.int32))
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, step.run())
        assert bool(torch.isfinite(out).all())
    assert_close(out, naive(step), torch.bfloat16)


MIXES: tuple[tuple[tuple[tuple[int, int], ...], int], ...] = (
    (((1, 530), (1, 18), (1, 1), (50, 50), (17, 200)), 3),
    (((1, 40), *CUT[:7]), 1),
    (((200, 200),), 0),
    (((1, 3000), (1, 7)), 2),
    ((*[(1, 300 + 7 * i) for i in range(60)], *[(3, 700 + i) for i in range(16)]), 60),
)


def test_one_captured_graph_serves_any_step() -> None:
    """Of decodes and chunks, few and many, cut or not; in the bits that the host's sizes give."""
    steps = [make_step(sequences, num, BF16, **USUAL) for sequences, num in MIXES]
    cache = max(len(step.k_cache) for step in steps)
    k_cache, v_cache = (
        torch.empty(cache, *steps[0].k_cache.shape[1:]).to(steps[0].q) for _ in "kv"
    )
    width = max(step.block_tables.shape[1] for step in steps)
    largest = max(steps, key=lambda step: step.block_tables.shape[1])
    room = replace(AnyStep.room_for(largest, 64, 16, 512), k_cache=k_cache, v_cache=v_cache)
    room.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = room.run()
    for step in (*steps, *reversed(steps)):
        num_blocks = len(step.k_cache)
        k_cache[:num_blocks], v_cache[:num_blocks] = step.k_cache, step.v_cache
        tables = torch.full((len(step.block_tables), width), -1).to(step.block_tables)
        tables[:, : step.block_tables.shape[1]] = step.block_tables
        room.fill(replace(step, block_tables=tables))
        out.fill_(float("nan"))
        graph.replay()
        got = out[: len(step.q)]
        assert_close(got, naive(step), torch.bfloat16)
        assert torch.equal(got[step.num_decodes :], step.run()[step.num_decodes :])
