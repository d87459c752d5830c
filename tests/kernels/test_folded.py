"""Expand and its consumer in one launch, against fp64 loops over every token's own rank rows."""

from dataclasses import replace

import pytest
import torch

import kernels.folded
from kernels.bench.workloads import WORKLOADS, Group, make_pool, token_slots
from kernels.lora import Shrunk
from tests.kernels.conftest import HAS_CUDA, Target
from tests.kernels.folding import (
    DECODE,
    EPS,
    MAX_RANK,
    NUM_SLOTS,
    ON_CPU,
    PREFILL,
    SHARES,
    Form,
    Op,
    drawn,
    expanded,
    form_of,
    listed,
    make_batch,
    shrunk,
    triton_op,
    whole,
)
from tests.kernels.test_lora_fp8 import in_fp8
from tests.kernels.tolerances import assert_close


def check_silu_mul(
    op: Op, name: str, num_tokens: int, inner: int, target: Target, form: Form = DECODE
) -> None:
    pool = make_batch(name, num_tokens, (inner, inner), target)
    h = shrunk(pool, target, form.h_shares)
    wide = drawn(target, num_tokens, 2 * inner + 3)
    gate_up = form.y(wide[:, 1 : 2 * inner + 1])
    gate, up = expanded(whole(gate_up), h, pool).chunk(2, dim=-1)
    got = op(gate_up, form.h(h, pool, target), pool.weights[0], pool.batch, target.dtype)
    assert got.dtype == target.dtype
    assert_close(got.cpu(), gate / (1 + (-gate).exp()) * up)


@pytest.mark.parametrize("name", WORKLOADS)
def test_silu_mul_of_every_mix(name: str, target: Target) -> None:
    check_silu_mul(triton_op("expand_silu_mul", target), name, 21, 40, target)


@pytest.mark.parametrize(("num_tokens", "inner"), [(1, 5), (35, 130), (0, 16)])
def test_silu_mul_of_odd_sizes(num_tokens: int, inner: int, target: Target) -> None:
    op = triton_op("expand_silu_mul", target)
    check_silu_mul(op, "uniform", num_tokens, inner, target)


def test_silu_mul_of_rows_stored_in_fp8(target: Target) -> None:
    pool = make_batch("mixed-ranks", 21, (40, 40), target)
    pool = replace(pool, weights=(in_fp8(pool.weights[0]),))
    # A row of fp8 has values up to 448: its scale is in h.
    h, gate_up = shrunk(pool, target, 3) / 448, drawn(target, 21, 80)
    gate, up = expanded(gate_up, h, pool).chunk(2, dim=-1)
    op = triton_op("expand_silu_mul", target)
    got = op(gate_up, listed(h, pool, target.dtype), pool.weights[0], pool.batch)
    assert_close(got.cpu(), gate / (1 + (-gate).exp()) * up)


@pytest.mark.parametrize("rank", [3, 24])
def test_other_company_leaves_the_bits(rank: int, target: Target) -> None:
    """Token 3's answer, whoever decodes beside it: before and after it, of other ranks, or none.

    Tensor cores sum 16 rows at a time; numpy, in the interpreter, promises no order.
    """
    if target.device == "cpu":
        pytest.skip("needs tensor cores")
    companies = ([3] * 11, [0, 1, 2, 3, 4, 0, 1, 2, 4, 4, -1], [-1, 4, -1, 3, 4, 4, 4, 4, 4, 4, 4])
    answers = []
    for slots in companies:
        pool = make_pool(
            [Group(8, (40, 40))],
            slots,
            [8, 24, 3, rank, 16],
            max_rank=MAX_RANK,
            dtype=target.dtype,
            device=target.device,
        )
        rows = listed(shrunk(pool, target, 3), pool, target.dtype)
        op = triton_op("expand_silu_mul", target)
        answers.append(op(drawn(target, 11, 80), rows, pool.weights[0], pool.batch)[3])
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])


def turned(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Each pair as a complex number times e^(i·angle). x [T, heads, D]."""
    low, high = x.chunk(2, dim=-1)
    pairs = torch.complex(low, high) * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat((pairs.real, pairs.imag), dim=-1)


def normed(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    if weight is None:
        return x
    scale = (x.square().sum(-1, keepdim=True) / x.shape[-1] + EPS).sqrt()
    return x / scale * weight.double().cpu()


def check_rope(
    op: Op,
    name: str,
    num_tokens: int,
    head_dim: int,
    has_norms: bool,
    target: Target,
    form: Form = DECODE,
) -> None:
    num_heads, num_kv_heads = 4, 2
    sizes = (num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim)
    pool = make_batch(name, num_tokens, sizes, target)
    h = shrunk(pool, target, form.h_shares)
    qkv = drawn(target, num_tokens, sum(sizes) + 8)[:, : sum(sizes)]
    angle = torch.rand(num_tokens, head_dim // 2, dtype=torch.float64) * 6
    shape = (num_tokens // 16 + 1, 16, num_kv_heads, head_dim)
    num_places = shape[0] * 16
    caches = [torch.full(shape, 7.0).to(target.device, target.dtype) for _ in range(2)]
    places = torch.randperm(num_places, generator=torch.Generator().manual_seed(1))[:num_tokens]
    if num_tokens > 3:
        places[1], places[3] = -1, num_places
    norms = [drawn(target, head_dim, seed=seed) if has_norms else None for seed in (1, 2)]
    qkv = form.y(qkv)
    heads = expanded(whole(qkv), h, pool).view(num_tokens, -1, head_dim)
    q, k, v = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], dim=1)
    got = op(
        qkv,
        form.h(h, pool, target),
        pool.weights[0],
        pool.batch,
        angle.cos().float().to(target.device),
        angle.sin().float().to(target.device),
        *caches,
        places.to(target.device),
        q_norm=norms[0],
        k_norm=norms[1],
        eps=EPS,
    )
    assert_close(got.cpu(), turned(normed(q, norms[0]), angle))
    written = [t for t, place in enumerate(places.tolist()) if 0 <= place < num_places]
    for cache, values in zip(caches, (turned(normed(k, norms[1]), angle), v), strict=True):
        want = torch.full(shape, 7.0, dtype=torch.float64)
        want.view(num_places, num_kv_heads, head_dim)[places[written]] = values[written]
        assert_close(cache.cpu(), want)


@pytest.mark.parametrize("name", ["none", "distinct", "skewed", "mixed-ranks"])
def test_rope_of_several_mixes(name: str, target: Target) -> None:
    check_rope(triton_op("expand_rope_kv_write", target), name, 21, 32, False, target)


@pytest.mark.parametrize(
    ("num_tokens", "has_norms", "head_dim"),
    [(1, True, 24), (35, False, 24), (1, False, 128), (35, True, 128)],
)
def test_rope_of_odd_sizes(num_tokens: int, has_norms: bool, head_dim: int, target: Target) -> None:
    op = triton_op("expand_rope_kv_write", target)
    check_rope(op, "mixed-ranks", num_tokens, head_dim, has_norms, target)


def check_norm(
    op: Op, name: str, num_tokens: int, hidden: int, target: Target, form: Form = DECODE
) -> None:
    pool = make_batch(name, num_tokens, (hidden,), target)
    h = shrunk(pool, target, form.h_shares)
    x = drawn(target, num_tokens, hidden + 3)[:, 2 : hidden + 2]
    residual, weight = drawn(target, num_tokens, hidden, seed=9), drawn(target, hidden, seed=8)
    x = form.y(x)
    total = expanded(whole(x), h, pool) + residual.double().cpu()
    scale = (total.square().sum(-1, keepdim=True) / hidden + EPS).sqrt()
    normed_total = total / scale * weight.double().cpu()
    results = []
    for _ in range(2):
        kept = residual.clone()
        rows = form.h(h, pool, target)
        got = op(x.clone(), kept, rows, pool.weights[0], pool.batch, weight, EPS)
        assert_close(kept.cpu(), total)
        assert_close(got.cpu(), normed_total)
        results.append((kept, got))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("name", ["none", "distinct", "skewed", "mixed-ranks"])
def test_add_rms_norm_of_several_mixes(name: str, target: Target) -> None:
    check_norm(triton_op("expand_add_rms_norm", target), name, 21, 72, target)


@pytest.mark.parametrize(("num_tokens", "hidden"), [(1, 37), (35, 256), (0, 16)])
def test_add_rms_norm_of_odd_sizes(num_tokens: int, hidden: int, target: Target) -> None:
    check_norm(triton_op("expand_add_rms_norm", target), "uniform", num_tokens, hidden, target)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("num_tokens", [1, 16, 64, 200, 700, 1100])
@pytest.mark.parametrize("name", ["none", "uniform", "mixed-ranks"])
def test_add_rms_norm_of_a_large_model(name: str, num_tokens: int) -> None:
    target = Target("cuda", torch.bfloat16)
    form = form_of(num_tokens)
    check_norm(kernels.folded.expand_add_rms_norm, name, num_tokens, 4096, target, form)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("num_tokens", [1, 33, 130])
def test_one_graph_serves_every_mix(num_tokens: int) -> None:
    """Captured with one mix, the plan with it; replayed with every other."""
    target = Target("cuda", torch.bfloat16)
    pool = make_batch("mixed-ranks", num_tokens, (256,), target)
    x, residual, weight = (drawn(target, num_tokens, 256, seed=seed) for seed in (1, 2, 3))
    weight, h = weight[0].contiguous(), drawn(target, 1, num_tokens, 1, MAX_RANK)
    kept = residual.clone()

    def work() -> torch.Tensor:
        rows = listed(h, pool, target.dtype)
        return kernels.folded.expand_add_rms_norm(
            x, kept, rows, pool.weights[0], pool.batch, weight, EPS
        )

    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = work()
    for seed, name in enumerate(WORKLOADS * 3):
        slots = token_slots(name, num_tokens, NUM_SLOTS, seed)
        pool.batch.token_slot.copy_(torch.tensor(slots))
        kept.copy_(residual)
        graph.replay()
        total = expanded(x, h, pool) + residual.double().cpu()
        scale = (total.square().sum(-1, keepdim=True) / 256 + EPS).sqrt()
        assert_close(kept.cpu(), total)
        assert_close(got.cpu(), total / scale * weight.double().cpu())


def test_base_outputs_in_shares(target: Target) -> None:
    check_silu_mul(triton_op("expand_silu_mul", target), "mixed-ranks", 21, 40, target, SHARES)
    rope = triton_op("expand_rope_kv_write", target)
    check_rope(rope, "mixed-ranks", 21, 32, False, target, SHARES)
    check_norm(triton_op("expand_add_rms_norm", target), "mixed-ranks", 21, 72, target, SHARES)


@pytest.mark.parametrize("name", ["uniform", "mixed-ranks"])
def test_silu_mul_of_a_prefill(name: str, target: Target) -> None:
    check_silu_mul(triton_op("expand_silu_mul", target), name, 1100, 40, target, PREFILL)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("num_tokens", [300, 1100])
def test_prefills_take_the_narrow_ones_in_turn(num_tokens: int) -> None:
    target, form = Target("cuda", torch.bfloat16), form_of(num_tokens)
    rope, norm = kernels.folded.expand_rope_kv_write, kernels.folded.expand_add_rms_norm
    check_rope(rope, "uniform", num_tokens, 32, False, target, form)
    check_norm(norm, "uniform", num_tokens, 256, target, form)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["none", "uniform", "mixed-ranks"])
def test_the_cpu_takes_one_after_the_other(name: str, dtype: torch.dtype) -> None:
    target = Target("cpu", dtype)
    check_silu_mul(kernels.folded.expand_silu_mul, name, 21, 40, target, form=ON_CPU)
    rope = kernels.folded.expand_rope_kv_write
    check_rope(rope, name, 21, 16, False, target, form=ON_CPU)
    check_rope(rope, name, 21, 16, True, target, form=ON_CPU)
    check_norm(kernels.folded.expand_add_rms_norm, name, 21, 72, target, form=ON_CPU)


def test_bad_arguments_say_expected_and_got() -> None:
    pool = make_batch("uniform", 4, (16, 16), Target("cpu", torch.float32))
    arguments = (pool.weights[0], pool.batch)
    y, h = torch.zeros(4, 32), Shrunk(torch.zeros(1, 4, 2, MAX_RANK), 0)
    call: Op = kernels.folded.expand_silu_mul
    with pytest.raises(ValueError, match=r"h: expected shape \[P, 4, 2, 24\], got \[1, 4, 2, 23\]"):
        call(y, Shrunk(h.shares[..., 1:], 0), *arguments)
    with pytest.raises(ValueError, match=r"y: expected shape \[4, 32\], got \[3, 32\]"):
        call(y[1:], h, *arguments)
    with pytest.raises(ValueError, match=r"y's dtype: expected torch.float32, got torch.float16"):
        call(y.half(), h, *arguments)
    with pytest.raises(ValueError, match=r"y: expected dtype .*float16, got torch.bfloat16"):
        call(y[None].bfloat16(), h, *arguments, torch.float16)
    call = kernels.folded.expand_add_rms_norm
    with pytest.raises(ValueError, match="slices: expected 1, got 2"):
        call(y, y, h, *arguments, torch.ones(32), EPS)
    call = kernels.folded.expand_rope_kv_write
    with pytest.raises(ValueError, match="slices: expected 3, got 2"):
        call(y, h, *arguments, *[y] * 5)
