"""python -m tests.kernels.launches: what the ops launch for a Llama-3.1-8B layer on an H200.

Compiled, not run: one JSON line a launch, with its registers, stack and shared memory. In a process
of its own, without TRITON_INTERPRET.
"""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import kernels.launch
import kernels.lora.plan
from kernels.activation import silu_mul
from kernels.attention import hopper
from kernels.attention.decode import decode
from kernels.attention.prefill import prefill
from kernels.bench.workloads import Group
from kernels.folded import (
    expand_add_rms_norm,
    expand_rope_kv_write,
    expand_silu_mul,
)
from kernels.linear import linear_shares
from kernels.linear.table import linear_blocks
from kernels.lora import ActivePages, LoraBatch, LoraWeights, add_lora, shrink
from kernels.norm import add_rms_norm, rms_norm
from kernels.rope import rope_kv_write
from kernels.sampling import argmax
from tests.kernels.compiling import instead_of_running

NUM_PAGES, NUM_SLOTS = 512, 256
# Of a layer of Llama-3.1-8B.
GROUPS = (
    Group(4096, (4096, 1024, 1024)),
    Group(4096, (4096,)),
    Group(4096, (14336, 14336)),
    Group(14336, (4096,)),
)
NUM_SEQS, NUM_KV_HEADS, CONTEXT, BLOCK_SIZE, SCALE = 64, 8, 4096, 16, 0.1


def main() -> int:
    instead_of_running(lambda launch: print(json.dumps(launch), flush=True))
    _attention()
    kernels.launch._has_dependent_launch = lambda device: True
    # Sorted by torch beyond 256 tokens, which has no kernel for it here.
    kernels.lora.plan._order = lambda slots, num_slots: (slots.clone(), slots.clone())
    with FakeTensorMode(allow_non_fake_inputs=True):
        for call in _calls():
            call()
    return 0


def _attention() -> None:
    for head_dim, group in ((128, 4), (64, 8)):
        _attend(hopper.decode, hopper.prefill, head_dim, group)
    _attend(decode, prefill, 128, 4)


def _attend(
    run_decode: Callable[..., None],
    run_prefill: Callable[..., None],
    head_dim: int,
    group: int,
) -> None:
    """Of a step of decodes, and of one of chunks. Descriptors need real memory: the CPU's."""
    q = torch.empty(NUM_SEQS, NUM_KV_HEADS * group, head_dim, dtype=torch.bfloat16)
    cache = torch.empty(16, BLOCK_SIZE, NUM_KV_HEADS, head_dim, dtype=torch.bfloat16)
    tables = torch.zeros(NUM_SEQS, CONTEXT // BLOCK_SIZE, dtype=torch.int32)
    ints = torch.zeros(NUM_SEQS + 1, dtype=torch.int32)
    run_decode(q, cache, cache, tables, ints[1:], SCALE, CONTEXT, torch.empty_like(q))
    # Chunks whose positions are cut into parts, and such as are not.
    for num_positions in (CONTEXT, 1):
        chunks = [(1, num_positions)] * NUM_SEQS
        run_prefill(q, cache, cache, tables, ints, ints[1:], SCALE, chunks, q.clone())


def _calls() -> Iterator[Any]:
    slots = _ints(64)
    sort = kernels.lora.plan.sort_tokens_kernel
    yield lambda: sort[(4,)](slots, slots, slots, 64, 9, BT=16, BLOCK=64)
    for num_tokens in (1, 64, 128, 256, 2048):
        yield from _small_ops(num_tokens)
        yield from _lora(num_tokens)


def _small_ops(num_tokens: int) -> Iterator[Any]:
    x, weight = _bf16(num_tokens, 4096), _bf16(4096)
    rope = _rope(num_tokens)
    yield lambda: rms_norm(x, weight, 1e-5)
    yield lambda: add_rms_norm(x, x.clone(), weight, 1e-5)
    yield lambda: silu_mul(_bf16(num_tokens, 28672))
    yield lambda: argmax(_bf16(num_tokens, 128256))
    yield lambda: rope_kv_write(_bf16(num_tokens, 6144), *rope)
    for group in GROUPS:
        hidden, width = group.hidden, sum(group.slice_sizes)
        if linear_blocks(num_tokens, hidden, width, 2) is not None:
            wide, base = _bf16(num_tokens, hidden), _bf16(width, hidden)
            yield lambda x=wide, w=base: linear_shares(x, w)


def _rope(num_tokens: int) -> tuple[torch.Tensor, ...]:
    angles, cache = torch.empty(num_tokens, 64, device="cuda"), _bf16(9, 16, 8, 128)
    places = torch.empty(num_tokens, dtype=torch.int64, device="cuda")
    return angles, angles, cache, cache.clone(), places


def _lora(num_tokens: int) -> Iterator[Any]:
    batch = LoraBatch(
        _ints(num_tokens),
        _ints(NUM_SLOTS, 32),
        _ints(NUM_SLOTS),
        torch.empty(NUM_SLOTS, 7, device="cuda"),
        _ints(NUM_PAGES),
    )
    weights = [_rows(group, column) for group, column in zip(GROUPS, (0, 3, 4, 6), strict=True)]
    bound = ActivePages(weights).bind(batch, {})
    for group in weights:
        x, y = _bf16(num_tokens, group.a.shape[3]), _bf16(num_tokens, group.b.shape[2])
        yield lambda x=x, y=y, w=group: add_lora(y, x, w, bound)
    qkv, o, gate_up, _ = (_folded(num_tokens, group, bound) for group in weights)
    rope, x, weight = _rope(num_tokens), _bf16(num_tokens, 4096), _bf16(4096)
    yield lambda: expand_rope_kv_write(*qkv, *rope)
    yield lambda: expand_silu_mul(*gate_up)
    yield lambda: expand_add_rms_norm(o[0], x, *o[1:], weight, 1e-5)


def _folded(num_tokens: int, weights: LoraWeights, batch: LoraBatch) -> tuple[Any, ...]:
    """What a folded op takes first: base output, shrunk tokens, rows, batch."""
    x = _bf16(num_tokens, weights.a.shape[3])
    return _bf16(num_tokens, weights.b.shape[2]), shrink(x, weights, batch), weights, batch


def _rows(group: Group, column: int) -> LoraWeights:
    num_slices, width = len(group.slice_sizes), sum(group.slice_sizes)
    a = _bf16(NUM_PAGES, num_slices, 8, group.hidden)
    return LoraWeights(a, _bf16(NUM_PAGES, 8, width), group.slice_sizes, column)


def _ints(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int32, device="cuda")


def _bf16(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda")


if __name__ == "__main__":
    sys.exit(main())
