"""Attention on CUDA: decode beside the device's read bandwidth, prefill beside the best library.

Llama-3.1-8B's heads in bf16. A decode's share is its keys' and values' bytes over what the device
can read; a prefill's is the best library's time over ours, on the same shapes in the same run, the
library with contiguous keys and values, ours with shuffled pages.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.attention import attention
from kernels.bench.timing import graph_us, read_bytes_per_us

HQ, HKV, D, DTYPE = 32, 8, 128, torch.bfloat16
SCALE = D**-0.5
# (sequences, mean positions, KV block, spread: from few to twice as many positions, evenly)
DECODES = (
    (64, 4096, 16, False),
    (64, 4096, 64, False),
    (64, 4096, 16, True),
    (1, 384, 16, False),
    (64, 384, 16, False),
    (256, 384, 16, False),
    (1, 4096, 16, False),
    (16, 4096, 16, False),
    (256, 1024, 16, False),
    (1, 65536, 16, False),
)
# A captured graph of the engine knows no lengths, only this bound (or the longest, if longer).
BUCKET = 16384
# (sequences, queries of each, positions of each, KV block)
PREFILLS = (
    (1, 8192, 8192, 16),
    (4, 2048, 2048, 16),
    (8, 1024, 5120, 16),
    (1, 2048, 2048, 16),
    (16, 512, 512, 16),
    (64, 128, 128, 16),
    (1, 256, 8192, 16),
    (1, 128, 8192, 16),
    (1, 64, 8192, 16),
    (1, 16, 8192, 16),
)
# Well past the 50 MB of L2: nothing of the former call is left there when a call comes round.
ROTATED_BYTES = 400 << 20
MAX_ERROR_RATIO = 1e-2


@dataclass(frozen=True)
class Paged:
    """One call's tensors; every sequence's blocks are shuffled over the whole cache.

    queries and context: of each prefill. queries 1: a decode, and context its bound.
    """

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_tables: torch.Tensor
    query_start: torch.Tensor
    context_lens: torch.Tensor
    queries: int
    context: int

    def run(self) -> torch.Tensor:
        num_seqs = len(self.context_lens)
        is_decode = self.queries == 1
        return attention(
            self.q,
            self.k_cache,
            self.v_cache,
            self.block_tables,
            self.query_start,
            self.context_lens,
            SCALE,
            num_decodes=num_seqs if is_decode else 0,
            max_decode_context=self.context if is_decode else 0,
            prefills=[] if is_decode else [(self.queries, self.context)] * num_seqs,
        )


def paged(
    num_seqs: int, queries: int, context: int, block_size: int, copies: int = 1
) -> list[Paged]:
    """copies calls that share a cache and no block of it."""
    num_blocks = -(-context // block_size)
    shape = (copies * num_seqs * num_blocks, block_size, HKV, D)
    k_cache, v_cache = (torch.randn(shape, dtype=DTYPE, device="cuda") for _ in range(2))
    order = torch.randperm(shape[0], device="cuda").int().view(copies, num_seqs, num_blocks)
    starts = torch.arange(num_seqs + 1, dtype=torch.int32, device="cuda") * queries
    lens = torch.full((num_seqs,), context, dtype=torch.int32, device="cuda")
    made = []
    for table in order:
        q = torch.randn(num_seqs * queries, HQ, D, dtype=DTYPE, device="cuda")
        made.append(Paged(q, k_cache, v_cache, table, starts, lens, queries, context))
    return made


def bounded(call: Paged, block_size: int) -> Paged:
    """The same decodes as a captured graph has them: table and bound of the bucket."""
    bound = max(BUCKET, call.context)
    table = call.block_tables.new_full((len(call.context_lens), bound // block_size), -1)
    table[:, : call.block_tables.shape[1]] = call.block_tables
    return replace(call, block_tables=table, context=bound)


def run() -> Iterator[dict[str, object]]:
    bandwidth = read_bytes_per_us()
    for num_seqs, context, block_size, spread in DECODES:
        yield decode_result(num_seqs, context, block_size, spread, bandwidth)
    for num_seqs, queries, context, block_size in PREFILLS:
        yield prefill_result(num_seqs, queries, context, block_size)


def decode_result(
    num_seqs: int, context: int, block_size: int, spread: bool, bandwidth: float
) -> dict[str, object]:
    num_bytes = 2 * num_seqs * context * HKV * D * DTYPE.itemsize
    copies = min(64, max(2, -(-ROTATED_BYTES // num_bytes)))
    longest = 2 * context if spread else context
    calls = [bounded(call, block_size) for call in paged(num_seqs, 1, longest, block_size, copies)]
    if spread:
        _spread(calls, context)
    us = graph_us(lambda: [call.run() for call in calls], copies)
    return {
        "op": "attention",
        "kind": "decode",
        "batch": num_seqs,
        "queries": 1,
        "context": context,
        "spread": spread,
        "block_size": block_size,
        "us": round(us, 2),
        "bytes": num_bytes,
        "read_gb_s": round(num_bytes / us / 1e3, 1),
        "share_of_read_bandwidth": round(num_bytes / us / bandwidth, 3),
    }


def _spread(calls: list[Paged], context: int) -> None:
    """Lengths from few to twice as many positions as context, evenly."""
    for call in calls:
        num_seqs = len(call.context_lens)
        step = torch.arange(num_seqs, device="cuda") * 2 + 1
        call.context_lens.copy_(step * context // num_seqs)


def prefill_result(num_seqs: int, queries: int, context: int, block_size: int) -> dict[str, object]:
    call = paged(num_seqs, queries, context, block_size)[0]
    us = graph_us(lambda: [call.run() for _ in range(3)], 3)
    flops = prefill_flops(num_seqs, queries, context)
    times = library_times(call)
    best = min(times, key=lambda name: times[name], default=None)
    return {
        "op": "attention",
        "kind": "prefill",
        "batch": num_seqs,
        "queries": queries,
        "context": context,
        "block_size": block_size,
        "us": round(us, 2),
        "flops": flops,
        "tflop_s": round(flops / us / 1e6, 1),
        "library": best,
        "library_us": {name: round(time, 2) for name, time in times.items()},
        "share_of_library": round(times[best] / us, 3) if best else None,
    }


def prefill_flops(num_seqs: int, queries: int, context: int) -> int:
    """Two matmuls over the visible pairs."""
    pairs = queries * (context - queries) + queries * (queries + 1) // 2
    return 4 * num_seqs * pairs * HQ * D


def library_times(call: Paged) -> dict[str, float]:
    """µs of each library call that gives our answer; one that cannot is named on stderr."""
    num_seqs = len(call.context_lens)
    q = call.q.view(num_seqs, call.queries, HQ, D).transpose(1, 2).contiguous()
    k, v = (_contiguous(cache, call) for cache in (call.k_cache, call.v_cache))
    want = call.run().view(num_seqs, call.queries, HQ, D).transpose(1, 2).float()
    times = {}
    for name, attend in _libraries(q, k, v).items():
        try:
            error = (attend().float() - want).norm() / want.norm()
            if float(error) > MAX_ERROR_RATIO:
                raise RuntimeError(f"computes something else, error ratio {float(error):.1e}")
            times[name] = graph_us(attend, 1)
        except RuntimeError as error:
            print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
    return times


def _contiguous(cache: torch.Tensor, call: Paged) -> torch.Tensor:
    """[B, HKV, C, D] of the call's sequences."""
    rows = cache[call.block_tables.long()].flatten(1, 2)[:, : call.context]
    return rows.transpose(1, 2).contiguous()


def _libraries(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> dict[str, Callable[[], torch.Tensor]]:
    """Each with shared key heads, and with key heads copied for every query head beforehand.

    Queries at the end of a longer context: aten's flash counts the diagonal from the end, cuDNN's
    (by torch) from the start, and takes no part then.
    """
    copied = [x.repeat_interleave(HQ // HKV, 1) for x in (k, v)]

    def sdpa(backend: SDPBackend, keys: list[torch.Tensor]) -> torch.Tensor:
        with sdpa_kernel(backend):
            k, v = keys
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    def flash(keys: list[torch.Tensor]) -> torch.Tensor:
        run = torch.ops.aten._scaled_dot_product_flash_attention
        return run(q, *keys, 0.0, True, scale=SCALE)[0]  # type: ignore[no-any-return]

    return {
        "torch flash": lambda: flash([k, v]),
        "torch flash, copied heads": lambda: flash(copied),
        "torch cudnn": lambda: sdpa(SDPBackend.CUDNN_ATTENTION, [k, v]),
        "torch cudnn, copied heads": lambda: sdpa(SDPBackend.CUDNN_ATTENTION, copied),
    }
