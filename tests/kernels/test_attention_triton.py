"""The Triton kernels of attention: in the interpreter here, in every dtype on a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels.attention import attention, attention_of_any
from kernels.attention.tiles import DecodeTile, PrefillTile
from tests.kernels.conftest import HAS_CUDA, Target
from tests.kernels.test_attention import SCALE, STEPS, Step, any_step, make_step, naive
from tests.kernels.tolerances import assert_close

SPLIT_TILE = DecodeTile(
    block_n=16, num_warps=4, num_stages=3, programs_per_processor=2, min_split=32
)


def triton_attention(*tensors: Any, **hints: Any) -> torch.Tensor:
    """The public call, and what it does with CUDA tensors for those of the interpreter."""
    if tensors[0].is_cuda:
        return attention(*tensors, **hints)
    from kernels.attention import kernel

    attend: Callable[..., torch.Tensor] = kernel.attention
    return attend(*tensors, hints["num_decodes"], hints["max_decode_context"], hints["prefills"])


def split_decode(step: Step, tile: DecodeTile = SPLIT_TILE) -> torch.Tensor:
    from kernels.attention.decode import decode

    out = torch.empty_like(step.q)
    longest = max(positions for _, positions in step.sequences)
    tensors = (step.q, step.k_cache, step.v_cache, step.block_tables, step.context_lens)
    decode(*tensors, SCALE, longest, out, tile)
    return out


def cut_prefill(
    step: Step, tile: PrefillTile | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Into out, or a new tensor of q's shape."""
    from kernels.attention.prefill import prefill

    out = torch.empty_like(step.q) if out is None else out
    tensors = (step.q, step.k_cache, step.v_cache, step.block_tables, step.query_start)
    prefill(*tensors, step.context_lens, SCALE, step.sequences, out, tile or CUT_TILE)
    return out


@pytest.mark.parametrize("name", list(STEPS))
def test_equals_position_by_position(name: str, target: Target) -> None:
    sequences, num_decodes = STEPS[name]
    step = make_step(sequences, num_decodes, target)
    assert_close(step.run(triton_attention), naive(step), target.dtype)


def triton_attention_of_any(*tensors: Any) -> torch.Tensor:
    if tensors[0].is_cuda:
        return attention_of_any(*tensors)
    from kernels.attention import kernel

    attend: Callable[..., torch.Tensor] = kernel.attention_of_any
    return attend(*tensors)


def test_a_step_that_only_the_device_knows(target: Target) -> None:
    """One with everything in it: the interpreter is slow."""
    sequences, num_decodes = STEPS["mixed"]
    step = make_step(sequences, num_decodes, target)
    got = any_step(step).run(triton_attention_of_any)[: len(step.q)]
    assert_close(got, naive(step), target.dtype)


# Few, because each is compiled, of every dtype.
@pytest.mark.parametrize(("head_dim", "block_size"), [(64, 16), (96, 32), (128, 16)])
def test_head_dims_and_block_sizes(head_dim: int, block_size: int, target: Target) -> None:
    sequences = ((1, 65), (1, 16), (40, 40), (3, 70))
    step = make_step(sequences, 2, target, head_dim=head_dim, block_size=block_size)
    assert_close(step.run(triton_attention), naive(step), target.dtype)


@pytest.mark.parametrize("heads", [(2, 2), (32, 1)], ids=str)
def test_query_heads_of_a_key_head(heads: tuple[int, int], target: Target) -> None:
    step = make_step(((1, 33), (9, 20)), 1, target, heads=heads)
    assert_close(step.run(triton_attention), naive(step), target.dtype)


def test_many_tiles_of_many_chunks(target: Target) -> None:
    """More rows than a tile in some chunks, fewer in others, prefixes of all lengths."""
    sequences = ((70, 70), (1, 90), (33, 64), (64, 131))
    step = make_step(sequences, 0, target, block_size=16)
    assert_close(step.run(triton_attention), naive(step), target.dtype)


@pytest.mark.parametrize("block_m", [16, 64])
def test_tiles_that_hold_no_whole_query(block_m: int, target: Target) -> None:
    """Three rows a query: 16 and 64 rows end in the middle of one."""
    step = make_step(((30, 50),), 0, target)
    tile = PrefillTile(block_m, 16, 4, 2, min_split=512)
    assert_close(cut_prefill(step, tile), naive(step), target.dtype)


# Three parts, two of several tiles, a prefix that ends where a part does, and a chunk uncut.
CUT = ((1, 70), (12, 60), (4, 36), (5, 5))
CUT_TILE = PrefillTile(block_m=16, block_n=16, num_warps=4, num_stages=2, min_split=16)


def test_a_cut_prefix_is_the_sum_of_its_parts(target: Target) -> None:
    step = make_step(CUT, 0, target)
    got = cut_prefill(step)
    assert_close(got, naive(step), target.dtype)
    assert torch.equal(cut_prefill(step), got)


def test_neighbours_of_a_chunk_change_no_bits(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut or not, beside chunks that are and are not, in one launch and in several."""
    step = make_step(CUT, 0, target, heads=(3, 1))
    together = cut_prefill(step)
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
        assert torch.equal(cut_prefill(alone), together[first:last])
        first = last
    monkeypatch.setattr("kernels.attention.chunks.MAX_CUT_ITEMS", 5)
    assert torch.equal(cut_prefill(step), together)


# What the host says of chunks of (3, 50) and (8, 40): more and fewer tiles and parts.
WRONG: tuple[tuple[tuple[int, int], ...], ...] = (
    ((8, 40), (3, 50)),
    ((1, 1), (1, 1)),
    ((9, 10), (20, 200)),
)


def test_wrong_hints_stay_in_their_step(target: Target) -> None:
    """They end, write rows of out alone, and leave the next step's tickets clean."""
    step = make_step(((3, 50), (8, 40)), 0, target, heads=(3, 1))
    want = cut_prefill(step)
    for told in WRONG:
        kept = torch.full((22, *step.q.shape[1:]), 7.0).to(step.q)
        cut_prefill(Step(**(vars(step) | {"sequences": told})), out=kept)
        assert bool((kept[11:] == 7.0).all())
    assert torch.equal(cut_prefill(step), want)


def test_lengths_that_exceed_the_step_stay_inside(target: Target) -> None:
    """query_start behind the last token, lengths behind the table's end and of nothing."""
    step = make_step(((3, 50), (8, 40)), 0, target, heads=(3, 1))
    kept = torch.full((22, *step.q.shape[1:]), 7.0).to(step.q)
    step.query_start[2] = 20
    step.context_lens.copy_(torch.tensor([0, 10_000], dtype=torch.int32))
    step.block_tables[:] = step.block_tables[0, 0]
    cut_prefill(step, out=kept)
    assert bool((kept[11:] == 7.0).all())


def test_a_split_sequence_is_the_sum_of_its_parts(target: Target) -> None:
    """One part, two, and the most there may be, beside an empty sequence."""
    step = make_step(((1, 32), (1, 33), (1, 1030), (1, 1)), 4, target)
    assert_close(split_decode(step), naive(step), target.dtype)


def test_a_second_launch_finds_clean_tickets(target: Target) -> None:
    step = make_step(((1, 300), (1, 90)), 2, target)
    first = split_decode(step)
    assert torch.equal(split_decode(step), first)


def test_neighbours_change_no_bits(target: Target) -> None:
    """A sequence is split by its own length: the others may be anything."""
    step = make_step(((1, 300), (1, 90), (1, 17)), 3, target)
    alone = split_decode(step)[0]
    step.context_lens[1:] = torch.tensor([3, 20], dtype=torch.int32)
    assert torch.equal(split_decode(step)[0], alone)


def test_the_bound_changes_no_bits(target: Target) -> None:
    """A captured graph's bucket is above the lengths, and its table as wide as the bucket."""
    step = make_step(((1, 40), (1, 9)), 2, target)
    near = step.run(triton_attention)
    wide = torch.full((2, 500), -1, dtype=torch.int32, device=target.device)
    wide[:, : step.block_tables.shape[1]] = step.block_tables
    far = triton_attention(
        step.q,
        step.k_cache,
        step.v_cache,
        wide,
        step.query_start,
        step.context_lens,
        SCALE,
        num_decodes=2,
        max_decode_context=2000,
        prefills=[],
    )
    assert torch.equal(far, near)


def test_a_padded_decode_is_finite_and_changes_nothing(target: Target) -> None:
    step = make_step(((1, 300), (1, 50)), 2, target)
    want = split_decode(step)[0]
    step.context_lens[1] = 0
    step.block_tables[1] = -1
    got = split_decode(step)
    assert torch.equal(got[0], want)
    assert bool(torch.isfinite(got).all())


def test_queries_may_be_a_view_of_a_fused_projection(target: Target) -> None:
    step = make_step(((1, 12), (6, 13)), 1, target)
    want = step.run(triton_attention)
    fused = torch.cat([step.q, torch.full_like(step.q[:, :2], float("nan"))], 1)
    view = Step(**(vars(step) | {"q": fused[:, : step.q.shape[1]]}))
    assert torch.equal(view.run(triton_attention), want)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
def test_one_captured_graph_serves_any_lengths() -> None:
    target = Target("cuda", torch.bfloat16)
    step = make_step(((1, 700), (1, 700), (1, 700)), 3, target, head_dim=64, block_size=16)
    step.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step.run()
    for lens in ((700, 3, 256), (1, 0, 699), (300, 300, 300), (700, 700, 700)):
        step.context_lens.copy_(torch.tensor(lens, dtype=torch.int32))
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, step.run())
        assert bool(torch.isfinite(out).all())
    assert_close(out, naive(step), target.dtype)
