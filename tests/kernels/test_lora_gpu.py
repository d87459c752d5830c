"""What only a GPU shows: the public calls on CUDA, and one captured graph that serves any mix."""

from dataclasses import replace

import pytest
import torch

from kernels.bench.workloads import WORKLOADS, Group, Pool, make_pool, slot_ranks, token_slots
from kernels.lora import ActivePages, add_lora, expand, reference, shrink
from tests.kernels.conftest import HAS_CUDA
from tests.kernels.test_lora import inputs, naive
from tests.kernels.tolerances import assert_close

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device"),
]

NUM_TOKENS, NUM_SLOTS = 64, 16
GROUPS = (Group(1024, (1024, 256, 256)), Group(2816, (1024,)))


def pool_for(workload: str) -> Pool:
    slots = token_slots(workload, NUM_TOKENS, NUM_SLOTS)
    ranks = slot_ranks("mixed-ranks", NUM_SLOTS, 64)
    return make_pool(GROUPS, slots, ranks, dtype=torch.bfloat16, device="cuda")


@pytest.mark.parametrize("workload", WORKLOADS)
def test_public_calls_on_cuda(workload: str) -> None:
    pool = pool_for(workload)
    for weights in pool.weights:
        x, y = inputs(pool, weights)
        want, apart = naive(y, x, weights, pool.batch), y.clone()
        add_lora(y, x, weights, pool.batch)
        assert_close(y, want)
        expand(apart, shrink(x, weights, pool.batch), weights, pool.batch)
        assert_close(apart, want)


@pytest.mark.parametrize(
    ("num_tokens", "num_adapters"), [(1, 1), (64, 16), (256, 64), (320, 64), (700, 4), (1100, 4)]
)
def test_at_the_shape_of_an_8b_model(num_tokens: int, num_adapters: int) -> None:
    groups = (Group(4096, (4096, 1024, 1024)), Group(14336, (4096,)))
    slots = token_slots("uniform", num_tokens, num_adapters)
    ranks = slot_ranks("mixed-ranks", num_adapters, 64)
    pool = make_pool(groups, slots, ranks, dtype=torch.bfloat16, device="cuda")
    for weights in pool.weights:
        x, y = inputs(pool, weights)
        want = y.float()
        wide = replace(weights, a=weights.a.float(), b=weights.b.float())
        reference.expand(want, reference.shrink(x, weights, pool.batch), wide, pool.batch)
        add_lora(y, x, weights, pool.batch)
        assert_close(y, want)


def test_one_captured_graph_serves_any_mix() -> None:
    pool = pool_for("identical")
    weights, pages = pool.weights[0], ActivePages(pool.weights)
    x, y = inputs(pool, weights)
    base = y.clone()

    def step() -> None:
        y.copy_(base)
        add_lora(y, x, weights, pages.bind(pool.batch, {}))

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for seed in range(20):
        name = WORKLOADS[seed % len(WORKLOADS)]
        mix = torch.tensor(token_slots(name, NUM_TOKENS, NUM_SLOTS, seed), dtype=torch.int32)
        pool.batch.token_slot.copy_(mix)
        graph.replay()
        torch.cuda.synchronize()
        assert_close(y, naive(base, x, weights, pool.batch))
