"""A thousand registered adapters of which a part fits, drawn by Zipf's law, against all resident.

Both loops take the same draws; where all are to be resident, a draw of an adapter that does not fit
goes to one of the less popular half of those that do, so a batch has about as many distinct ones.
Adapters of rank 8 on the query and value projections, PEFT's default: one page of 42 MB each on the
host and the device, so a thousand are 42 GB. First loads of a thousand are then tens of seconds,
and one from disk takes about what a compiled file of all projections does.
"""

import random
from collections import Counter
from collections.abc import Iterator

from inference.bench.record import Row, figure
from inference.bench.stage import Stage
from inference.bench.traffic import Traffic, Window, closed_loop

RANK = 8
TARGETS = ("q_proj", "v_proj")
NUM_REGISTERED = 1000
EXPONENT = 1.0
# Before a window that counts, of its length.
WARM_SHARE = 0.4
MEASURE_S = 10.0
NUM_DRAWS = 100_000


def measure_zipf(
    stage: Stage, num_registered: int = NUM_REGISTERED, measure_s: float = MEASURE_S
) -> Iterator[Row]:
    """Tokens/s of a closed loop of stage.max_requests, over that with all its adapters resident."""
    fits = stage.num_fitting("many", RANK)
    names = _register(stage, num_registered)
    yield from stage.take_setup()
    if stage.left_s < 3 * measure_s:
        return
    draws = _draws(num_registered)
    nearby = [_resident(draw, fits) for draw in draws]
    Traffic(stage.engine("many"), 1, 1).burst(list(names[:fits]))
    reference = _loop(stage, names, nearby, measure_s)
    found = _loop(stage, names, draws, measure_s)
    who = f"{num_registered:,} registered, Zipf {EXPONENT}, {stage.max_requests} concurrent"
    yield figure(
        f"{who} / all resident",
        found.tokens_per_s / reference.tokens_per_s,
        "ratio",
        **_beside(found, reference, measure_s),
        **_setting(stage, fits),
        distinct=_num_distinct(draws, stage.max_requests),
        distinct_resident=_num_distinct(nearby, stage.max_requests),
    )


def _register(stage: Stage, num_registered: int) -> list[str]:
    """Names, of the only adapters then."""
    others = [info.name for info in stage.engine("many").state().adapters]
    stage.unload("many", [name for name in others if not name.startswith(f"r{RANK}-")])
    return stage.adapters("many", RANK, num_registered, TARGETS)


def _beside(found: Window, reference: Window, measure_s: float) -> Row:
    resident = _of_window(reference, measure_s)
    return _of_window(found, measure_s) | {f"{name}_resident": x for name, x in resident.items()}


def _of_window(window: Window, measure_s: float) -> Row:
    return {
        "tokens_per_s": round(window.tokens_per_s, 1),
        "first_ms_p50": round(window.first_ms(50), 1),
        "first_ms_p99": round(window.first_ms(99), 1),
        "loads_per_s": round(window.num_loads / measure_s, 1),
    }


def _setting(stage: Stage, fits: int) -> Row:
    tiers = Counter(info.tier for info in stage.engine("many").state().adapters)
    return {
        "fits": fits,
        "on_device": tiers["device"],
        "on_host": tiers["host"],
        "on_disk": tiers["disk"],
        "rank": RANK,
        "projections": list(TARGETS),
        "prompt_tokens": stage.prompt_tokens,
        "output_tokens": f"{stage.output_tokens // 4} to {stage.output_tokens}",
    }


def _draws(num_registered: int) -> list[int]:
    weights = [1 / (place + 1) ** EXPONENT for place in range(num_registered)]
    return random.Random(1).choices(range(num_registered), weights, k=NUM_DRAWS)


def _resident(draw: int, fits: int) -> int:
    if draw < fits:
        return draw
    half = fits // 2
    return half + (draw - fits) % (fits - half)


def _loop(stage: Stage, names: list[str], draws: list[int], measure_s: float) -> Window:
    chance = random.Random(2)
    shortest = max(1, stage.output_tokens // 4)
    requests = ((names[draw], chance.randint(shortest, stage.output_tokens)) for draw in draws)
    warm_s = WARM_SHARE * measure_s
    return closed_loop(stage.traffic("many"), requests, stage.max_requests, warm_s, measure_s)


def _num_distinct(draws: list[int], concurrency: int) -> float:
    """Mean over batches of consecutive draws."""
    starts = range(0, len(draws) - concurrency + 1, concurrency)
    return round(sum(len(set(draws[i : i + concurrency])) for i in starts) / len(starts), 1)
