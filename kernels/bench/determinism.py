"""The same inputs give the same bits: run to run, and whatever else is in the batch."""

from collections.abc import Iterator
from functools import partial

import torch

from kernels.bench.workloads import Group, Pool, make_pool, slot_ranks, token_slots
from kernels.folded import expand_silu_mul, linear_shrink
from kernels.lora import ActivePages, add_lora, lora_linear

GROUPS = (Group(4096, (4096, 1024, 1024)), Group(4096, (14336, 14336)), Group(14336, (4096,)))
SHAPES = ((1, 1), (8, 4), (64, 16), (256, 64), (700, 4))
NUM_MIXES = 8


def run() -> Iterator[dict[str, object]]:
    """One line a shape: every figure must be true."""
    for num_tokens, num_adapters in SHAPES:
        yield {
            "op": "lora",
            "table": "determinism",
            "dtype": "bfloat16",
            "tokens": num_tokens,
            "adapters": num_adapters,
        } | same_bits(num_tokens, num_adapters)


def same_bits(
    num_tokens: int, num_adapters: int, groups: tuple[Group, ...] = GROUPS
) -> dict[str, bool]:
    """repeat: twice on the same inputs. company: one token in four keeps its bits while all others
    change their adapters; folded: likewise behind SiLU·mul, where the group has two slices. order:
    so does every token of LoRA alone when the batch is permuted.
    """
    slots = token_slots("uniform", num_tokens, num_adapters)
    # From rank 13 on: a single product could not be summed in another way.
    ranks = slot_ranks("mixed-ranks", num_adapters + 4, 64)[4:]
    pool = make_pool(groups, slots, ranks, dtype=torch.bfloat16, device="cuda")
    found = [_same_bits(pool, i) for i in range(len(groups))]
    return {name: all(each[name] for each in found) for name in found[0]}


def _same_bits(pool: Pool, i: int) -> dict[str, bool]:
    weights, pages, batch = pool.weights[i], ActivePages(pool.weights), pool.batch
    num_tokens, hidden = batch.token_slot.shape[0], weights.a.shape[3]
    width = sum(weights.slice_sizes)
    new = partial(torch.randn, dtype=torch.bfloat16, device="cuda")
    x, y, base = new(num_tokens, hidden), new(num_tokens, width), new(width, hidden)
    own = batch.token_slot.clone()

    def apply(slots: torch.Tensor) -> torch.Tensor:
        batch.token_slot.copy_(slots)
        return lora_linear(x, base, weights, pages.bind(batch, {}))

    def apply_folded(slots: torch.Tensor) -> torch.Tensor:
        if len(weights.slice_sizes) != 2:
            return x
        batch.token_slot.copy_(slots)
        bound = pages.bind(batch, {})
        halves = linear_shrink(x, base, weights, bound)
        return expand_silu_mul(*halves, weights, bound, torch.bfloat16)

    def apply_alone(order: torch.Tensor) -> torch.Tensor:
        batch.token_slot.copy_(own[order])
        result = y[order]
        add_lora(result, x[order], weights, pages.bind(batch, {}))
        return result

    first, repeat, company = apply(own), apply(own), True
    first_folded, folded = apply_folded(own), True
    for seed in range(NUM_MIXES):
        generator = torch.Generator().manual_seed(seed)
        mix = torch.randint(-1, batch.ranks.shape[0], (num_tokens,), generator=generator)
        mix[::4] = own[::4]
        company &= torch.equal(apply(mix)[::4], first[::4])
        folded &= torch.equal(apply_folded(mix)[::4], first_folded[::4])
    straight = torch.arange(num_tokens, device="cuda")
    shuffled = torch.randperm(num_tokens, generator=torch.Generator().manual_seed(1)).cuda()
    order = torch.equal(apply_alone(shuffled), apply_alone(straight)[shuffled])
    batch.token_slot.copy_(own)
    repeat_folded = torch.equal(apply_folded(own), first_folded)
    return {
        "repeat": torch.equal(first, repeat) and repeat_folded,
        "company": company,
        "folded": folded,
        "order": order,
    }
