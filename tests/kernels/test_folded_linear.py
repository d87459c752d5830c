"""A projection's two halves side by side, and the op that reads them, against fp64."""

from dataclasses import replace

import pytest
import torch

import kernels.folded
from kernels.bench.workloads import Pool
from kernels.lora import ActivePages, LoraBatch, LoraWeights, shrink
from tests.kernels.conftest import HAS_CUDA, Target
from tests.kernels.folding import drawn, expanded, make_batch
from tests.kernels.tolerances import assert_close


@pytest.mark.parametrize("bound", [False, True], ids=["reference", "dense"])
def test_the_two_halves_of_a_projection(bound: bool) -> None:
    """linear_shrink and the op behind it, on the CPU in both its forms."""
    pool = make_batch("uniform", 11, (40, 40), Target("cpu", torch.float32))
    weights, batch = pool.weights[0], pool.batch
    x, base, bias = (torch.randn(n) for n in ((11, 8), (80, 8), (80,)))
    h = shrink(x, weights, batch).shares
    want = expanded(x.double() @ base.double().T + bias, h, pool)
    gate, up = want.chunk(2, dim=-1)
    if bound:
        active = {slot: slot for slot in batch.token_slot.tolist() if slot >= 0}
        batch = ActivePages(pool.weights).bind(batch, active)
    y, shrunk_x = kernels.folded.linear_shrink(x, base, weights, batch, bias)
    got = kernels.folded.expand_silu_mul(y, shrunk_x, weights, batch)
    assert_close(got, gate / (1 + (-gate).exp()) * up)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("num_tokens", [1, 17, 64, 200, 700])
def test_the_two_halves_of_a_projection_on_cuda(num_tokens: int) -> None:
    target = Target("cuda", torch.bfloat16)
    pool = make_batch("uniform", num_tokens, (256, 256), target)
    weights, batch = pool.weights[0], ActivePages(pool.weights).bind(pool.batch, {})
    x, base = drawn(target, num_tokens, 8), drawn(target, 512, 8, seed=5)
    bias = drawn(target, 1, 512)[0]
    on_cpu = shrink(x.float().cpu(), *in_fp32_on_the_cpu(pool)).shares
    want = expanded(x.double() @ base.double().T + bias.double(), on_cpu, pool)
    gate, up = want.chunk(2, dim=-1)
    y, h = kernels.folded.linear_shrink(x, base, weights, batch, bias)
    got = kernels.folded.expand_silu_mul(y, h, weights, batch, target.dtype)
    assert_close(got.cpu(), gate / (1 + (-gate).exp()) * up)


def in_fp32_on_the_cpu(pool: Pool) -> tuple[LoraWeights, LoraBatch]:
    weights, tensors = pool.weights[0], {}
    for field in ("token_slot", "page_table", "ranks", "scales", "page_owner"):
        tensors[field] = getattr(pool.batch, field).cpu()
    a, b = weights.a.float().cpu(), weights.b.float().cpu()
    return replace(weights, a=a, b=b), LoraBatch(**tensors)


def test_a_bad_projection_says_expected_and_got() -> None:
    pool = make_batch("uniform", 4, (16, 16), Target("cpu", torch.float32))
    arguments, hidden = (pool.weights[0], pool.batch), pool.weights[0].a.shape[3]
    x, base = torch.zeros(4, hidden), torch.zeros(32, hidden)
    call = kernels.folded.linear_shrink
    with pytest.raises(
        ValueError, match=rf"x: expected shape \[4, {hidden}\], got \[3, {hidden}\]"
    ):
        call(x[1:], base, *arguments)
    with pytest.raises(
        ValueError, match=r"weight: expected dtype torch.float16, got torch.float32"
    ):
        call(x.half(), base, *arguments)
    with pytest.raises(ValueError, match=rf"weight: expected shape \[32, {hidden}\]"):
        call(x, base[1:], *arguments)
    with pytest.raises(ValueError, match=r"bias: expected shape \[32\], got \[31\]"):
        call(x, base, *arguments, base[1:, 0])
