"""The grid: one projection group at a time, against the best peer at every point."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from kernels.bench.backends import OURS, Backend
from kernels.bench.cases import Point, floor_bytes
from kernels.bench.measure import Measured, best_peer, measure
from kernels.bench.timing import read_bytes_per_us

NUM_ROUNDS = 7


def run(
    todo: Sequence[Point],
    backends: Mapping[str, Backend],
    deadline: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[dict[str, object]]:
    """One line a point, until the clock is past the deadline."""
    for point in todo:
        if clock() > deadline:
            return
        yield _line(point, measure(point, backends, NUM_ROUNDS))
        torch.cuda.empty_cache()


def key(line: Mapping[str, object]) -> tuple[object, ...] | None:
    """What makes two lines the same point; None for lines of other tables."""
    if line.get("table") != "grid":
        return None
    return tuple(line.get(name) for name in ("projection", "rank", "tokens", "adapters"))


def point_key(point: Point) -> tuple[object, ...]:
    return (point.projection, point.rank, point.num_tokens, point.num_adapters)


def _line(point: Point, found: Measured) -> dict[str, object]:
    size = floor_bytes(point.group, point.rank, point.num_tokens, point.num_adapters)
    return {
        "op": "lora",
        "table": "grid",
        "dtype": "bfloat16",
        "projection": point.projection,
        "tokens": point.num_tokens,
        "adapters": point.num_adapters,
        "rank": point.rank,
        "gain_us": round(found.gain[OURS], 3),
        "folded_us": round(found.folded[OURS], 3),
        # Over the faster of cuBLAS and our own matmul: that one is faster is no merit of LoRA's.
        "net_us": round(found.folded[OURS] - min(found.own_us, 0.0), 3),
        "own_us": round(found.own_us, 3),
        "alone_us": round(found.alone[OURS], 3),
        "base_us": round(found.base_us, 3),
        "floor_us": round(size / read_bytes_per_us(), 3),
        "spread": max(found.spread.values()),
        **_of_peers(found),
    }


def _of_peers(found: Measured) -> dict[str, object]:
    """The best one's figures, then everybody's."""
    gain, alone = best_peer(found.gain), best_peer(found.alone)
    return {
        "peer_us": round(gain[1], 3) if gain else None,
        "peer": gain[0] if gain else None,
        "peer_alone_us": round(alone[1], 3) if alone else None,
        "peer_alone": alone[0] if alone else None,
        "peers": {
            name: {"gain_us": round(us, 3), "alone_us": round(found.alone[name], 3)}
            for name, us in found.gain.items()
            if name != OURS
        },
    }
