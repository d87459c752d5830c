"""The same inputs give the same bits: run to run, and whatever else is in the batch."""

from collections.abc import Iterator
from functools import partial

import torch

from kernels.bench.workloads import Group, Pool, make_pool, slot_ranks, token_slots
from kernels.folded import expand_silu_mul, linear_shrink
from kernels.lora import ActivePages, LoraBatch, LoraWeights, add_lora, lora_linear

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
    case = _Case(pool.weights[i], ActivePages(pool.weights), pool.batch)
    own = pool.batch.token_slot.clone()
    first, first_folded = case.linear(own), case.folded(own)
    repeat, company, folded = torch.equal(case.linear(own), first), True, True
    for seed in range(NUM_MIXES):
        generator = torch.Generator().manual_seed(seed)
        mix = torch.randint(-1, pool.batch.ranks.shape[0], (len(own),), generator=generator)
        mix[::4] = own[::4]
        company &= torch.equal(case.linear(mix)[::4], first[::4])
        folded &= torch.equal(case.folded(mix)[::4], first_folded[::4])
    straight = torch.arange(len(own), device="cuda")
    shuffled = torch.randperm(len(own), generator=torch.Generator().manual_seed(1)).cuda()
    order = torch.equal(case.alone(own, shuffled), case.alone(own, straight)[shuffled])
    repeat &= torch.equal(case.folded(own), first_folded)
    return {"repeat": repeat, "company": company, "folded": folded, "order": order}


class _Case:
    """One group's op in each form; a call writes its slots into the batch."""

    def __init__(self, weights: LoraWeights, pages: ActivePages, batch: LoraBatch) -> None:
        self._weights, self._pages, self._batch = weights, pages, batch
        num_tokens, hidden = batch.token_slot.shape[0], weights.a.shape[3]
        width = sum(weights.slice_sizes)
        new = partial(torch.randn, dtype=torch.bfloat16, device="cuda")
        self._x, self._y = new(num_tokens, hidden), new(num_tokens, width)
        self._base = new(width, hidden)

    def linear(self, slots: torch.Tensor) -> torch.Tensor:
        return lora_linear(self._x, self._base, self._weights, self._bound(slots))

    def folded(self, slots: torch.Tensor) -> torch.Tensor:
        """Behind SiLU·mul; of a group that does not have two slices, x."""
        if len(self._weights.slice_sizes) != 2:
            return self._x
        bound = self._bound(slots)
        halves = linear_shrink(self._x, self._base, self._weights, bound)
        return expand_silu_mul(*halves, self._weights, bound, torch.bfloat16)

    def alone(self, slots: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Without the matmul, the batch permuted."""
        y = self._y[order]
        add_lora(y, self._x[order], self._weights, self._bound(slots[order]))
        return y

    def _bound(self, slots: torch.Tensor) -> LoraBatch:
        self._batch.token_slot.copy_(slots)
        return self._pages.bind(self._batch, {})
