"""Paged attention against softmax(q Kᵀ) V in fp64, with NaN wherever nobody may look."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from kernels.attention import attention, attention_of_any, kv_write
from tests.kernels.conftest import HAS_CUDA, Target
from tests.kernels.tolerances import assert_close

BLOCK_SIZE, NUM_KV_HEADS, NUM_HEADS, HEAD_DIM, SCALE = 4, 2, 6, 24, 0.3


@dataclass(frozen=True)
class Step:
    """One step's arguments. sequences: (queries, positions), the decodes (one query) first."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_tables: torch.Tensor
    query_start: torch.Tensor
    context_lens: torch.Tensor
    sequences: tuple[tuple[int, int], ...]
    num_decodes: int

    def run(self, attend: Callable[..., torch.Tensor] = attention) -> torch.Tensor:
        decodes = self.sequences[: self.num_decodes]
        return attend(
            self.q,
            self.k_cache,
            self.v_cache,
            self.block_tables,
            self.query_start,
            self.context_lens,
            SCALE,
            num_decodes=self.num_decodes,
            max_decode_context=max([positions for _, positions in decodes], default=0),
            prefills=self.sequences[self.num_decodes :],
        )


def make_step(
    sequences: tuple[tuple[int, int], ...],
    num_decodes: int,
    target: Target,
    *,
    head_dim: int = HEAD_DIM,
    block_size: int = BLOCK_SIZE,
    heads: tuple[int, int] = (NUM_HEADS, NUM_KV_HEADS),
) -> Step:
    """Shuffled blocks; every cache element that belongs to no position of a sequence is NaN."""
    generator = torch.Generator().manual_seed(3)
    needed = [-(-positions // block_size) for _, positions in sequences]
    num_blocks = sum(needed) + 2
    shape = (num_blocks, block_size, heads[1], head_dim)
    caches = [torch.randn(shape, generator=generator) for _ in range(2)]
    order = torch.randperm(num_blocks, generator=generator).tolist()
    tables = torch.full((len(sequences), max(needed) + 1), -1, dtype=torch.int32)
    for row, (count, (_, positions)) in enumerate(zip(needed, sequences, strict=True)):
        taken, order = order[:count], order[count:]
        tables[row, :count] = torch.tensor(taken, dtype=torch.int32)
        if positions % block_size:
            for cache in caches:
                cache[taken[-1], positions % block_size :] = float("nan")
    for cache in caches:
        cache[order] = float("nan")
    queries = torch.tensor([0] + [count for count, _ in sequences])
    q = torch.randn(int(queries.sum()), heads[0], head_dim, generator=generator)
    lens = torch.tensor([positions for _, positions in sequences], dtype=torch.int32)
    q, k_cache, v_cache = (x.to(target.device, target.dtype) for x in (q, *caches))
    tables, start, lens = (x.to(target.device) for x in (tables, queries.cumsum(0).int(), lens))
    return Step(q, k_cache, v_cache, tables, start, lens, sequences, num_decodes)


@dataclass(frozen=True)
class AnyStep:
    """The arguments of attention_of_any, with room for more than there is."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    decodes: tuple[torch.Tensor, torch.Tensor]
    chunks: tuple[torch.Tensor, torch.Tensor, torch.Tensor]

    @classmethod
    def room_for(cls, step: Step, num_decodes: int, num_chunks: int, num_tokens: int) -> "AnyStep":
        """NaN where no token is; tables that name no block."""
        q = step.q.new_full((num_tokens, *step.q.shape[1:]), float("nan"))
        ints = step.context_lens.new_zeros
        width = step.block_tables.shape[1]
        decodes = (ints(num_decodes, width) - 1, ints(num_decodes))
        chunks = (ints(num_chunks, width) - 1, ints(num_chunks + 1), ints(num_chunks))
        return cls(q, step.k_cache, step.v_cache, decodes, chunks)

    def fill(self, step: Step) -> None:
        """In place, as before a replay: the step, and nothing behind it."""
        num = step.num_decodes
        (tables, lens), (chunk_tables, starts, chunk_lens) = self.decodes, self.chunks
        self.q.fill_(float("nan"))
        self.q[: len(step.q)] = step.q
        for room, values in (
            (tables, step.block_tables[:num]),
            (lens, step.context_lens[:num]),
            (chunk_tables, step.block_tables[num:]),
            (chunk_lens, step.context_lens[num:]),
        ):
            room.fill_(-1 if room.dim() == 2 else 0)
            room[: len(values)] = values
        starts.fill_(len(step.q))
        starts[: len(step.query_start) - num] = step.query_start[num:]

    def run(self, attend: Callable[..., torch.Tensor] = attention_of_any) -> torch.Tensor:
        return attend(self.q, self.k_cache, self.v_cache, self.decodes, self.chunks, SCALE)


def any_step(step: Step) -> AnyStep:
    num_chunks = len(step.sequences) - step.num_decodes
    sizes = (step.num_decodes + 2, num_chunks + 3, len(step.q) + 9)
    made = AnyStep.room_for(step, *sizes)
    made.fill(step)
    return made


def naive(step: Step) -> torch.Tensor:
    """Sequence by sequence in fp64, from the positions' own places in the cache.

    A sequence's queries go at once: with a call for each, processes that run beside each other
    spend their time waiting for each other's threads.
    """
    q, k_cache, v_cache = (x.double().cpu() for x in (step.q, step.k_cache, step.v_cache))
    block_size, num_kv_heads = k_cache.shape[1:3]
    tables, group = step.block_tables.tolist(), q.shape[1] // num_kv_heads
    out, first = torch.zeros_like(q), 0
    for table, (queries, positions) in zip(tables, step.sequences, strict=True):
        places = [table[p // block_size] * block_size + p % block_size for p in range(positions)]
        k, v = (x.flatten(0, 1)[places].repeat_interleave(group, 1) for x in (k_cache, v_cache))
        rows, position = slice(first, first + queries), torch.arange(positions)
        scores = torch.einsum("qhd,chd->hqc", q[rows], k) * SCALE
        scores.masked_fill_(position > position[-queries:, None], float("-inf"))
        out[rows] = torch.einsum("hqc,chd->qhd", torch.softmax(scores, 2), v)
        first += queries
    return out


# The CPU op is plain torch: every dtype runs on it.
PLACES = [
    *(Target("cpu", dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)),
    pytest.param(
        Target("cuda", torch.bfloat16),
        marks=[pytest.mark.gpu, pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")],
    ),
]

STEPS = {
    "one decode": (((1, 7),), 1),
    "first token": (((1, 1),), 1),
    "ragged decodes": (((1, 9), (1, 1), (1, 16), (1, 3)), 4),
    "whole prompt": (((5, 5),), 0),
    "prefix and chunk": (((3, 14),), 0),
    "chunk of one": (((1, 6),), 0),
    "mixed": (((1, 12), (1, 5), (6, 6), (4, 13), (1, 8)), 2),
}


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("name", list(STEPS))
def test_attention_equals_position_by_position(name: str, place: Target) -> None:
    sequences, num_decodes = STEPS[name]
    step = make_step(sequences, num_decodes, place)
    assert_close(step.run(), naive(step), place.dtype)


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("name", list(STEPS))
def test_a_step_that_only_the_device_knows(name: str, place: Target) -> None:
    sequences, num_decodes = STEPS[name]
    step = make_step(sequences, num_decodes, place)
    got = any_step(step).run()
    assert_close(got[: len(step.q)], naive(step), place.dtype)


def test_bounds_that_are_too_small_or_too_large_are_named() -> None:
    step = any_step(make_step(((1, 7), (3, 14)), 1, Target("cpu", torch.float32)))
    tables, lens = step.decodes
    wide = (tables.new_zeros(17, tables.shape[1]), lens.new_zeros(18), lens.new_zeros(17))
    with pytest.raises(ValueError, match="chunks: expected 1 to 16, got 17"):
        replace(step, chunks=wide).run()
    many = (tables.new_zeros(14, tables.shape[1]), lens.new_zeros(14))
    with pytest.raises(ValueError, match="decodes: expected at most 13, got 14"):
        replace(step, decodes=many).run()
    with pytest.raises(ValueError, match=r"context_lens: expected shape \[3\], got \[2\]"):
        replace(step, decodes=(tables, lens[:2])).run()


def test_a_padded_decode_is_finite_and_changes_nothing() -> None:
    step = make_step(((1, 9), (1, 5)), 2, Target("cpu", torch.float32))
    want = step.run()[0]
    step.context_lens[1] = 0
    step.block_tables[1] = step.block_tables[0, 0]
    got = step.run()
    assert torch.equal(got[0], want)
    assert bool(torch.isfinite(got).all())


def test_an_empty_step_gives_an_empty_answer() -> None:
    step = make_step(((1, 4),), 1, Target("cpu", torch.float32))
    out = attention(
        step.q[:0],
        step.k_cache,
        step.v_cache,
        step.block_tables[:0],
        step.query_start[:1],
        step.context_lens[:0],
        SCALE,
        num_decodes=0,
        max_decode_context=0,
    )
    assert out.shape == (0, NUM_HEADS, HEAD_DIM)


def test_kv_write_skips_padded_tokens(target: Target) -> None:
    """Keys and values are views of a fused projection; places past the cache are skipped too."""
    if target.device == "cuda":
        write = kv_write
    else:
        from kernels.attention import kernel

        write = kernel.kv_write
    check_kv_write(write, target)


def test_kv_write_of_the_cpu_skips_padded_tokens() -> None:
    check_kv_write(kv_write, Target("cpu", torch.bfloat16))


def check_kv_write(write: Callable[..., None], target: Target) -> None:
    generator = torch.Generator().manual_seed(5)
    places = torch.tensor([6, -1, 0, 11, 99], device=target.device)
    fused = torch.randn(5, 4 * 2 * 10, generator=generator).to(target.device, target.dtype)
    k, v = fused[:, 40:60].view(5, 2, 10), fused[:, 60:].view(5, 2, 10)
    caches = [torch.full((3, 4, 2, 10), 7.0).to(k) for _ in range(2)]
    wants = [cache.clone() for cache in caches]
    for want, x in zip(wants, (k, v), strict=True):
        for token in (0, 2, 3):
            place = int(places[token])
            want[place // 4, place % 4] = x[token]
    write(k, v, *caches, places)
    assert torch.equal(caches[0], wants[0])
    assert torch.equal(caches[1], wants[1])


def changed(**changes: object) -> Callable[[], object]:
    step = make_step(((1, 7), (3, 5)), 1, Target("cpu", torch.float32))
    arguments: dict[str, object] = {
        "q": step.q,
        "k_cache": step.k_cache,
        "v_cache": step.v_cache,
        "block_tables": step.block_tables,
        "query_start": step.query_start,
        "context_lens": step.context_lens,
        "scale": SCALE,
        "num_decodes": 1,
        "max_decode_context": 7,
        "prefills": [(3, 5)],
    }
    call: Callable[..., object] = attention
    return lambda: call(**(arguments | changes))


BAD: dict[str, dict[str, object]] = {
    "q: expected dtype torch.float32 or": {"q": torch.zeros(4, 6, 24, dtype=torch.int32)},
    "k_cache: expected shape [NB, BS, HKV, 20]": {"q": torch.zeros(4, 6, 20)},
    "HQ: expected a multiple of HKV = 2, got 5": {"q": torch.zeros(4, 5, 24)},
    "k_cache: expected dtype torch.float16": {"q": torch.zeros(4, 6, 24).half()},
    "k_cache: expected device meta": {"q": torch.zeros(4, 6, 24, device="meta")},
    "queries of all sequences: expected 5, got 4": {"q": torch.zeros(5, 6, 24)},
    "block_tables: expected dtype torch.int32": {"block_tables": torch.zeros(2, 3).long()},
    "query_start: expected shape [3], got [2]": {"query_start": torch.zeros(2).int()},
    "context_lens: expected shape [2], got [1]": {"context_lens": torch.ones(1).int()},
    "sequences: expected 2, got 3": {"num_decodes": 2},
    "positions of a sequence: expected at most 12, got 13": {"max_decode_context": 13},
    "queries of a prefill: expected 1 to 2, got 3": {"prefills": [(3, 2)]},
    "num_decodes: expected at least 0, got -1": {"num_decodes": -1, "prefills": [(3, 5)] * 3},
    "HQ: expected a multiple of HKV = 0, got 6": {
        "k_cache": torch.zeros(4, 4, 0, 24),
        "v_cache": torch.zeros(4, 4, 0, 24),
    },
    "head dim: expected at most 256, got 264": {
        "q": torch.zeros(4, 6, 264),
        "k_cache": torch.zeros(4, 4, 2, 264),
        "v_cache": torch.zeros(4, 4, 2, 264),
    },
    "context_lens: expected a contiguous tensor": {"context_lens": torch.ones(4).int()[::2]},
    "block_tables: expected a contiguous tensor": {"block_tables": torch.ones(2, 4).int()[:, 1:]},
}


@pytest.mark.parametrize("message", list(BAD))
def test_bad_arguments_say_expected_and_got(message: str) -> None:
    with pytest.raises(ValueError) as caught:
        changed(**BAD[message])()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"v": torch.zeros(2, 2, 9)}, "v: expected shape [2, 2, 10]"),
        ({"k_cache": torch.zeros(3, 4, 1, 10)}, "k_cache: expected shape [NB, BS, 2, 10]"),
        ({"v_cache": torch.zeros(3, 4, 2, 10).half()}, "v_cache: expected dtype torch.float32"),
        ({"places": torch.zeros(2).int()}, "places: expected dtype torch.int64"),
        ({"places": torch.zeros(3).long()}, "places: expected shape [2], got [3]"),
        ({"places": torch.zeros(4).long()[::2]}, "places: expected a contiguous tensor"),
        ({"places": torch.zeros(2, device="meta").long()}, "places: expected device cpu, got meta"),
        ({"v": torch.zeros(2, 2, 10).half()}, "v: expected dtype torch.float32"),
        ({"k": torch.zeros(2, 2, 10).long()}, "k: expected dtype torch.float32 or"),
        (
            {"k_cache": torch.zeros(3, 2, 4, 10).transpose(1, 2)},
            "k_cache: expected a contiguous tensor",
        ),
    ],
)
def test_bad_kv_writes_say_expected_and_got(change: dict[str, torch.Tensor], message: str) -> None:
    arguments = {
        "k": torch.zeros(2, 2, 10),
        "v": torch.zeros(2, 2, 10),
        "k_cache": torch.zeros(3, 4, 2, 10),
        "v_cache": torch.zeros(3, 4, 2, 10),
        "places": torch.zeros(2).long(),
    }
    with pytest.raises(ValueError) as caught:
        kv_write(**(arguments | change))
    assert message in str(caught.value)
