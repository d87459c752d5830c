"""Bursts: requests that arrive together, request i with adapter i mod n. Tables B and C."""

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from inference.bench.floors import floor_ms, predicted_ms
from inference.bench.record import Row, figure
from inference.bench.stage import Stage
from inference.bench.traffic import Sent, Traffic, steady_steps_ms, tokens_per_s

# What is compiled, copied or made at first use is not kept.
WARM_TOKENS = 4


@dataclass(frozen=True)
class Burst:
    num_requests: int
    num_adapters: int

    def __str__(self) -> str:
        return f"{self.num_requests} requests, {self.num_adapters} adapters"


def burst(text: str) -> Burst:
    """ "64/16": requests, distinct adapters."""
    requests, slash, adapters = text.partition("/")
    if not (slash and requests.isdecimal() and adapters.isdecimal() and int(requests) > 0):
        raise argparse.ArgumentTypeError(f"expected REQUESTS/ADAPTERS, got {text!r}")
    return Burst(int(requests), int(adapters))


# Every row of table B, and 256/100 of table C.
BURSTS = tuple(
    Burst(*pair)
    for pair in (
        *((64, 0), (64, 1), (64, 16), (64, 64)),
        *((256, 0), (256, 16), (256, 64), (256, 100), (256, 256)),
    )
)


def measure_bursts(
    stage: Stage,
    bursts: Sequence[Burst] = BURSTS,
    gains_us: Mapping[tuple[int, int, int], float] | None = None,
) -> Iterator[Row]:
    """Rows of tables B and C for every burst, in order. gains_us: floors.layer_gains_us."""
    base: dict[int, Row] = {}
    alone_s: dict[int, float] = {}
    for each in bursts:
        if stage.left_s <= 0:
            return
        runs = run_burst(stage, each)
        yield from stage.take_setup()
        row = _step_row(stage, each, runs)
        if not each.num_adapters:
            base[each.num_requests] = row
        elif each.num_requests in base:
            row |= _prediction(stage, each, row, base[each.num_requests], gains_us or {})
        yield row
        yield from _run_rows(each, runs, alone_s)


def run_burst(stage: Stage, each: Burst, engine: str = "many") -> list[list[Sent]]:
    """The same burst stage.repeats times, adapters on the device."""
    traffic = stage.traffic(engine)
    names = stage.adapters(engine, stage.rank, each.num_adapters) if each.num_adapters else []
    adapters = [names[i % len(names)] if names else None for i in range(each.num_requests)]
    Traffic(traffic.engine, stage.prompt_tokens, WARM_TOKENS).burst(adapters)
    runs = [traffic.burst(adapters) for _ in range(stage.repeats)]
    if any(len(steady_steps_ms(sent)) < 2 for sent in runs):
        raise RuntimeError(f"{each}: they never decode all together: too little KV memory?")
    return runs


def _step_row(stage: Stage, each: Burst, runs: list[list[Sent]]) -> Row:
    steps = [step for sent in runs for step in steady_steps_ms(sent)]
    return {
        "table": "B",
        "model": stage.spec.name,
        "requests": each.num_requests,
        "adapters": each.num_adapters,
        "rank": stage.rank if each.num_adapters else None,
        "prompt_tokens": stage.prompt_tokens,
        "output_tokens": stage.output_tokens,
        "step_ms": round(statistics.median(steps), 3),
        "step_ms_p90": round(statistics.quantiles(steps, n=10)[-1], 3),
        # What the peers' figures are: the smallest mean time between tokens of a request.
        "tpot_ms_min": round(min(_tpot_ms(one) for sent in runs for one in sent), 3),
        "floor_ms": _floor_ms(stage, each),
        "num_steps": len(steps),
        "places": stage.places["many"],
    }


def _floor_ms(stage: Stage, each: Burst) -> float | None:
    """None where it is not known: on the CPU."""
    engine = stage.engine("many")
    if engine.device.type != "cuda":
        return None
    context = stage.prompt_tokens + stage.output_tokens / 2
    numbers = (each.num_requests, context, each.num_adapters, stage.rank)
    return round(floor_ms(stage.spec, engine.dtype, *numbers), 3)


def _tpot_ms(one: Sent) -> float:
    return (one.token_s[-1] - one.token_s[0]) / (len(one.token_s) - 1) * 1e3


def _prediction(
    stage: Stage,
    each: Burst,
    row: Row,
    base: Row,
    gains_us: Mapping[tuple[int, int, int], float],
) -> Row:
    """The step by the kernels' table A, and what the loop takes beyond it."""
    gain_us = gains_us.get((each.num_requests, each.num_adapters, stage.rank))
    if gain_us is None:
        return {}
    wanted = predicted_ms(base["step_ms"], stage.spec.num_layers, gain_us)
    return {"predicted_ms": round(wanted, 3), "lost_ms": round(row["step_ms"] - wanted, 3)}


def _run_rows(each: Burst, runs: list[list[Sent]], alone_s: dict[int, float]) -> Iterator[Row]:
    """alone_s: by number of requests, the median time to first token without adapters."""
    first = [sorted(one.first_s for one in sent) for sent in runs]
    median = statistics.mean(statistics.median(times) for times in first)
    rate = statistics.mean(tokens_per_s(sent) for sent in runs)
    yield figure(f"output, {each}", rate, "tok/s")
    yield figure(f"time to first token, median, {each}", median * 1e3, "ms")
    last = statistics.mean(times[-1] for times in first)
    yield figure(f"time to first token, last, {each}", last * 1e3, "ms")
    if not each.num_adapters:
        alone_s[each.num_requests] = median
    elif each.num_requests in alone_s:
        ratio = median / alone_s[each.num_requests]
        yield figure(f"time to first token with LoRA / without, {each}", ratio, "ratio")
