"""What a decode step could take: by the bytes it must read, and by the kernels' own table."""

import json
from collections.abc import Iterable
from pathlib import Path

import torch

from inference.model_spec import ModelSpec
from kernels.bench.timing import read_bytes_per_us

KERNEL_RESULTS = Path(__file__).parents[2] / "kernels" / "bench" / "results"


def floor_ms(
    spec: ModelSpec,
    dtype: torch.dtype,
    num_requests: int,
    context: float,
    num_adapters: int,
    rank: int,
) -> float:
    """Weights, keys and values, and adapters once, at the GPU's read bandwidth. context: positions
    of a request, on average over the steps.
    """
    shapes = spec.projections().values()
    weights = spec.num_layers * sum(i * o for i, o in shapes) + spec.vocab_size * spec.hidden_size
    adapter = spec.num_layers * rank * sum(i + o for i, o in shapes)
    kv = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * context
    elements = weights + num_adapters * adapter + num_requests * kv
    return elements * dtype.itemsize / read_bytes_per_us() / 1e3


def layer_gains_us(paths: Iterable[Path]) -> dict[tuple[int, int, int], float]:
    """(tokens, adapters, rank) → what LoRA adds to a layer, by the newest table A among the lines.

    Over the faster of cuBLAS and our own matmul: a base step is measured with the latter.
    """
    gains: dict[tuple[int, int, int], float] = {}
    dates: dict[tuple[int, int, int], str] = {}
    for path in paths:
        for text in path.read_text("utf-8").splitlines():
            line = json.loads(text)
            if line.get("table") != "A" or "net_us" not in line:
                continue
            key = (line["tokens"], line["adapters"], line["rank"])
            if line["date"] >= dates.get(key, ""):
                gains[key], dates[key] = line["net_us"], line["date"]
    return gains


def predicted_ms(base_ms: float, num_layers: int, gain_us: float) -> float:
    return base_ms + num_layers * gain_us / 1e3
