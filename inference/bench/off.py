"""What requests without an adapter pay for an engine that serves adapters."""

import statistics
from collections.abc import Iterator

from inference.bench.bursts import Burst, run_burst
from inference.bench.record import Row, figure
from inference.bench.stage import Stage
from inference.bench.traffic import steady_steps_ms, tokens_per_s

REQUESTS = (64, 256)
NUM_ROUNDS = 2


def measure_off(stage: Stage) -> Iterator[Row]:
    """Tokens/s of bursts without adapters: an engine full of adapters over one that has none.

    "few" must not have loaded any yet. The engines take turns, in one process.
    """
    stage.adapters("many", stage.rank, min(64, stage.places["many"]))
    if stage.engine("few").state().adapters:
        raise RuntimeError("off: the engine to compare with has adapters; measure this first")
    for num_requests in sorted({min(number, stage.max_requests) for number in REQUESTS}):
        if stage.left_s <= 0:
            return
        rates, steps = _take_turns(stage, num_requests)
        yield from stage.take_setup()
        ratio = statistics.mean(rates["many"]) / statistics.mean(rates["few"])
        with_ms, without_ms = statistics.median(steps["many"]), statistics.median(steps["few"])
        yield figure(
            f"without adapters, LoRA engine / LoRA-off, {num_requests} requests",
            ratio,
            "ratio",
            step_ms=round(with_ms, 3),
            step_ms_off=round(without_ms, 3),
            places=stage.places["many"],
        )


def _take_turns(
    stage: Stage, num_requests: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """By engine: tokens/s of each burst, and all steps in ms."""
    rates: dict[str, list[float]] = {"many": [], "few": []}
    steps: dict[str, list[float]] = {"many": [], "few": []}
    for _ in range(NUM_ROUNDS):
        for name in rates:
            for sent in run_burst(stage, Burst(num_requests, 0), name):
                rates[name].append(tokens_per_s(sent))
                steps[name] += steady_steps_ms(sent)
    return rates, steps
