"""Times on CUDA: replays of one captured graph, medians, and the device's own read bandwidth."""

import statistics
from collections.abc import Callable

import torch

NUM_REPLAYS = 11


def graph_us(work: Callable[[], object], per: int) -> float:
    """Median microseconds of one of the per equal parts of work, captured once and replayed."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times = [_replay_us(graph) for _ in range(NUM_REPLAYS + 2)]
    return statistics.median(times[2:]) / per


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def read_bytes_per_us() -> float:
    """Bandwidth of summing four GiB."""
    data = torch.ones(2**30, device="cuda")
    return data.numel() * 4 / graph_us(lambda: [data.sum() for _ in range(3)], 3)
