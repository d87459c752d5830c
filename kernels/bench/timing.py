"""Times on CUDA: replays of captured graphs, medians, and the device's own read bandwidth."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch

Call = Callable[[], object]

NUM_REPLAYS = 11
REST_S = 1e-3


def graph_us(work: Call, per: int) -> float:
    """Median microseconds of one of the per equal parts of work, captured once and replayed."""
    graph = capture([work])
    times = [_replay_us(graph) for _ in range(NUM_REPLAYS + 2)]
    return statistics.median(times[2:]) / per


def rounds_us(works: Mapping[str, Sequence[Call]], num_rounds: int) -> dict[str, list[float]]:
    """Microseconds of one call of each work, a figure a round.

    A work is one graph over all its calls. The works take turns: a drift of the clock meets all
    alike, and differences of two works are taken within a round. After each the device rests, or
    one work's power would slow the next one's clock.
    """
    graphs = {name: capture(calls) for name, calls in works.items()}
    for graph in graphs.values():
        _replay_us(graph)
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(num_rounds):
        for name, graph in graphs.items():
            us = _replay_us(graph)
            times[name].append(us / len(works[name]))
            time.sleep(max(REST_S, 2e-6 * us))
    return times


def spread(times: Sequence[float]) -> float:
    """Between the quartiles, as a share of the median."""
    if len(times) < 4:
        return 0.0
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / middle


def capture(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    """One graph over the calls, each run once before. Their results live until the capture ends:
    no call writes where an earlier one's result still lies in the cache.
    """
    stream = _stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        kept = [call() for call in calls]
    del kept
    return graph


@cache
def _stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


@cache
def read_bytes_per_us() -> float:
    """Bandwidth of summing four GiB."""
    data = torch.ones(2**30, device="cuda")
    return data.numel() * 4 / graph_us(lambda: [data.sum() for _ in range(3)], 3)
