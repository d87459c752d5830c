"""One point: what LoRA adds to its base matmul, ours and the peers', in one run on one input."""

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial

import torch

from kernels.bench.backends import (
    MAX_ERROR,
    MAX_FP8_ERROR,
    OURS,
    OURS_FP8,
    Backend,
    base_calls,
    errors,
    load,
)
from kernels.bench.cases import Point, base_weights, make_case
from kernels.bench.timing import Call, rounds_us, spread

# Of a graph; but few of a prefill's, which run into the device's power limit.
MIN_CALLS = 16


@dataclass(frozen=True)
class Measured:
    """Microseconds. gain, folded, alone: by backend; spread of each work by its name.

    gain: base matmul and LoRA in one graph, minus the base matmul; folded, of ours: base matmul and
    what reads its output with LoRA folded in, minus the two without it, the matmul then being
    cuBLAS; alone: LoRA added into y. own: what our own matmul takes beyond cuBLAS, the same two.
    """

    base_us: float
    own_us: float
    gain: dict[str, float]
    folded: dict[str, float]
    alone: dict[str, float]
    spread: dict[str, float]


def measure(point: Point, backends: Mapping[str, Backend], num_rounds: int) -> Measured:
    case, base = make_case(point), base_weights(point.group)
    works = {name: backend(case, base) for name, backend in backends.items()}
    pairs = {"base": base_calls(case, base)} | {name: work.pair for name, work in works.items()}
    folding = {name: work.folded for name, work in works.items() if work.folded}
    if folding:
        pairs |= {"plain": works[OURS].plain, "own": works[OURS].own}
        pairs |= {f"{n} folded": w for n, w in folding.items()}
    least = MIN_CALLS if point.is_decode else 1
    times = rounds_us({name: _long(calls, least) for name, calls in pairs.items()}, num_rounds)
    lone = rounds_us({n: _long(work.alone, least) for n, work in works.items()}, num_rounds)
    return Measured(
        statistics.median(times["base"]),
        median_difference(times["own"], times["plain"]) if folding else 0.0,
        {name: median_difference(times[name], times["base"]) for name in works},
        {name: median_difference(times[f"{name} folded"], times["plain"]) for name in folding},
        {name: statistics.median(each) for name, each in lone.items()},
        {name: round(spread(each), 4) for name, each in times.items()},
    )


def _long(calls: list[Call], least: int) -> list[Call]:
    """Walked again, so that the start and the end of a replay weigh little."""
    return calls * -(-least // len(calls))


def prepare(
    todo: Sequence[Point], peers_dir: str | None, names: tuple[str, ...], *, in_fp8: bool = False
) -> tuple[dict[str, Backend], dict[str, object]]:
    """Compiles for the points, loads, checks; with the line of the errors. ValueError: too large.

    in_fp8: with ours on rows in fp8 among the backends.
    """
    started = time.monotonic()
    compile_all(todo, peers_dir, names, in_fp8=in_fp8)
    print(
        f"kernels.bench: compiled for {len(todo)} points in {time.monotonic() - started:.0f} s",
        file=sys.stderr,
        flush=True,
    )
    backends = load(peers_dir, names, in_fp8=in_fp8)
    # The widest mix of each shape.
    shapes = {(p.projection, p.rank, p.is_decode): p for p in todo}
    worst = check(list(shapes.values()), backends)
    line = {"op": "lora", "table": "error", "dtype": "bfloat16", "shapes": len(shapes)}
    return backends, line | {"alone_and_pair": worst}


def check(points: Sequence[Point], backends: Mapping[str, Backend]) -> dict[str, list[float]]:
    """The largest error of each backend, alone and in a pair. ValueError: one is not right."""
    worst = {name: [0.0, 0.0] for name in backends}
    for point in points:
        for name, backend in backends.items():
            found = errors(backend, make_case(point, sets=1), base_weights(point.group))
            limit = MAX_FP8_ERROR if name == OURS_FP8 else MAX_ERROR
            if not max(found) <= limit:
                raise ValueError(f"{name}, {point}: expected an error ≤ {limit}, got {found}")
            worst[name] = [round(max(pair), 5) for pair in zip(worst[name], found, strict=True)]
    return worst


def compile_all(
    points: Sequence[Point], peers_dir: str | None, names: tuple[str, ...], *, in_fp8: bool
) -> None:
    """Runs every backend once at every point, in many processes: Triton's cache is then full."""
    num_processes = min(len(points), max(1, (os.cpu_count() or 1) - 1))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, context) as executor:
        list(executor.map(partial(_compile, peers_dir, names, in_fp8), points))


def _compile(peers_dir: str | None, names: tuple[str, ...], in_fp8: bool, point: Point) -> None:
    case, base = make_case(point, sets=1), base_weights(point.group)
    for backend in _backends(peers_dir, names, in_fp8).values():
        work = backend(case, base)
        work.alone[0]()
        work.pair[0]()
        for call in work.plain[:1] + work.own[:1] + work.folded[:1]:
            call()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


@cache
def _backends(peers_dir: str | None, names: tuple[str, ...], in_fp8: bool) -> dict[str, Backend]:
    return load(peers_dir, names, in_fp8=in_fp8)


def best_peer(figures: Mapping[str, float]) -> tuple[str, float] | None:
    """The fastest of them that is not ours."""
    peers = {name: us for name, us in figures.items() if name not in (OURS, OURS_FP8)}
    return min(peers.items(), key=lambda item: item[1]) if peers else None


def median_difference(times: Sequence[float], base: Sequence[float]) -> float:
    return statistics.median(a - b for a, b in zip(times, base, strict=True))
