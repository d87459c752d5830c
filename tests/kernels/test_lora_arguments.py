"""What the LoRA ops refuse, before anything is launched: ValueError with expected and got."""

import dataclasses
from collections.abc import Callable

import pytest
import torch

from kernels.bench.workloads import Pool
from kernels.lora import (
    ActivePages,
    LoraBatch,
    LoraWeights,
    Shrunk,
    add_lora,
    expand,
    lora_linear,
    shrink,
)
from kernels.lora.plan import plan_tiles
from tests.kernels.test_lora import CPU, NUM_SLOTS, inputs, pool_for


def bad_calls(pool: Pool) -> dict[str, Callable[[], object]]:
    weights, batch = pool.weights[0], pool.batch
    x, y = inputs(pool, weights)
    h = shrink(x, weights, batch)
    replace = dataclasses.replace
    return {
        "x: expected shape [11, 33], got [11, 32]": lambda: shrink(x[:, 1:], weights, batch),
        "x: expected shape [11, 33], got [10, 33]": lambda: add_lora(y, x[1:], weights, batch),
        "x: expected dtype torch.float32, got torch.float64": lambda: shrink(
            x.double(), weights, batch
        ),
        "y: expected shape [11, 63], got [11, 62]": lambda: add_lora(y[:, 1:], x, weights, batch),
        "y: expected dtype torch.float32": lambda: expand(y.half(), h, weights, batch),
        "y's last stride: expected 1": lambda: add_lora(y.T.contiguous().T, x, weights, batch),
        "h: expected shape [P, 11, 3, 64], got [1, 11, 3, 63]": lambda: expand(
            y, Shrunk(h.shares[..., 1:], 0), weights, batch
        ),
        "h: expected dtype torch.float32": lambda: expand(
            y, Shrunk(h.shares.half(), 0), weights, batch
        ),
        "adapter slots: expected fewer than 65535": lambda: plan_tiles(
            LoraBatch(
                batch.token_slot,
                torch.zeros(2**16, 1, dtype=torch.int32),
                torch.zeros(2**16, dtype=torch.int32),
                torch.zeros(2**16, 1),
                batch.page_owner,
            ),
            8,
        ),
        "x's last stride: expected 1": lambda: shrink(x.T.contiguous().T, weights, batch),
        "bias: expected shape [63], got [62]": lambda: lora_linear(
            x, torch.zeros(63, 33), weights, batch, torch.zeros(62)
        ),
        "weight: expected dtype torch.float32, got torch.float16": lambda: lora_linear(
            x, torch.zeros(63, 33).half(), weights, batch
        ),
        "x: expected device cpu, got meta": lambda: shrink(x.to("meta"), weights, batch),
        "columns of scales: expected at least 5, got 4": lambda: shrink(
            x, replace(weights, column=2), batch
        ),
        "page_owner: expected shape": lambda: shrink(
            x, weights, replace(batch, page_owner=batch.page_owner[1:])
        ),
        "ranks: expected shape [5], got [4]": lambda: replace(batch, ranks=batch.ranks[1:]),
        "token_slot: expected dtype torch.int32, got torch.int64": lambda: replace(
            batch, token_slot=batch.token_slot.long()
        ),
        "scales: expected dtype torch.float32": lambda: replace(
            batch, scales=batch.scales.double()
        ),
        "number of slice_sizes: expected 3, got 2": lambda: replace(weights, slice_sizes=(37, 26)),
        "b: expected shape": lambda: replace(weights, slice_sizes=(37, 5, 20)),
        "a: expected shape [NP, NS, PR, H]": lambda: replace(weights, a=weights.a[0]),
        "a: expected dtype": lambda: replace(weights, a=weights.a.double()),
        "a's last stride: expected 1": lambda: replace(weights, a=weights.a[..., ::2]),
        "column: expected at least 0, got -1": lambda: replace(weights, column=-1),
        "slices of a: expected 1 to 3, got 4": lambda: LoraWeights(
            torch.zeros(2, 4, 8, 16), torch.zeros(2, 8, 8), (2, 2, 2, 2), 0
        ),
        # What the kernels walk by shape alone: a view would be read as what lies behind it.
        "token_slot: expected a contiguous tensor, got strides (2,)": lambda: replace(
            batch, token_slot=batch.token_slot.repeat(2)[::2]
        ),
        "page_table: expected a contiguous tensor": lambda: replace(
            batch, page_table=batch.page_table[:, 1:]
        ),
        "scales' last stride: expected 1": lambda: replace(
            batch, scales=batch.scales.T.contiguous().T
        ),
        "h's group: expected column 0, got 3": lambda: expand(
            y, Shrunk(h.shares, 3), weights, batch
        ),
        "h listed: expected shape [2, 3, 16, 640], got [2, 3, 16, 639]": lambda: expand(
            y, Shrunk(h.shares, 0, torch.zeros(2, 3, 16, 639)), weights, batch
        ),
        "h listed: expected False, got True": lambda: expand(
            y, Shrunk(h.shares, 0, torch.zeros(2, 3, 16, 640)), weights, batch
        ),
    }


def bad_plans(pool: Pool) -> dict[str, Callable[[], object]]:
    """A batch that was planned and then changed, or planned for others."""
    weights, replace = pool.weights[0], dataclasses.replace
    x, _ = inputs(pool, weights)
    planned = replace(pool.batch, plan=plan_tiles(pool.batch, weights.a.shape[2]))
    fewer, narrower = pool.batch.token_slot[1:], pool.batch.page_table[:, :2].contiguous()
    return {
        "sizes of the plan: expected PlanSizes(num_tokens=10": lambda: shrink(
            x[1:], weights, replace(planned, token_slot=fewer)
        ),
        "got PlanSizes(num_tokens=11, num_slots=5, max_pages=8": lambda: shrink(
            x, weights, replace(planned, page_table=narrower)
        ),
        "rows of a page in the plan: expected 8, got 4": lambda: shrink(
            x, weights, replace(pool.batch, plan=plan_tiles(pool.batch, 4))
        ),
    }


def bad_bindings(pool: Pool) -> dict[str, Callable[[], object]]:
    """A batch that was bound and then changed, or bound for others."""
    weights, other = pool.weights
    replace, versions = dataclasses.replace, dict.fromkeys(range(NUM_SLOTS), "v")
    x, _ = inputs(pool, weights)
    dense = ActivePages([weights]).bind(pool.batch, versions)
    fewer = pool.batch.token_slot[1:]
    return {
        "tokens of the dense form: expected 10, got 11": lambda: shrink(
            x[1:], weights, replace(dense, token_slot=fewer)
        ),
        "groups bound to the batch: expected column 3": lambda: shrink(
            inputs(pool, other)[0], other, dense
        ),
        "groups: expected at least one": lambda: ActivePages([]),
        "columns of groups: expected each once, got [0, 0, 1": lambda: ActivePages(
            [weights, replace(other, column=0)]
        ),
        "a: expected shape [18, NS, 8, H], got [17, 1, 8, 530]": lambda: ActivePages(
            [weights, replace(other, a=other.a[1:], b=other.b[1:])]
        ),
        "page_owner: expected shape [18], got [17]": lambda: ActivePages(pool.weights).bind(
            replace(pool.batch, page_owner=pool.batch.page_owner[1:].contiguous()), versions
        ),
        "active slots: expected 0 to 4, got [0, 1, 2, 3, 4, 5]": lambda: ActivePages(
            pool.weights
        ).bind(pool.batch, versions | {5: "v"}),
        "rows of a page: expected a power of two, at most 128, got 6": lambda: plan_tiles(
            pool.batch, 6
        ),
    }


CALLS = bad_calls(pool_for("uniform", CPU)) | bad_bindings(pool_for("uniform", CPU))
if not torch.cuda.is_available():
    # Plans on the CPU are made in the interpreter.
    CALLS |= bad_plans(pool_for("uniform", CPU))


@pytest.mark.parametrize("message", list(CALLS))
def test_bad_arguments_say_expected_and_got(message: str) -> None:
    call = CALLS[message]
    with pytest.raises(ValueError) as caught:
        call()
    assert message in str(caught.value)
