"""One adapter more than fits: what the cliff is, where there is one."""

import itertools
from collections.abc import Iterator

from inference.bench.record import Row, figure
from inference.bench.stage import Stage
from inference.bench.traffic import Window, closed_loop

OUTPUT_TOKENS = 64
# Before a window that counts, of its length.
WARM_SHARE = 0.4
MEASURE_S = 5.0


def measure_fit(
    stage: Stage, concurrent: tuple[int, ...] = (8, 32), measure_s: float = MEASURE_S
) -> Iterator[Row]:
    """Times to first token with as many adapters as fit, and with one more; request i uses adapter
    i mod n, the worst order for who evicts the least recently used.
    """
    fits = stage.num_fitting("few", stage.rank)
    names = stage.adapters("few", stage.rank, fits + 1)
    yield from stage.take_setup()
    for concurrency in concurrent:
        if stage.left_s < 3 * measure_s:
            return
        inside = _loop(stage, names[:fits], concurrency, measure_s)
        beyond = _loop(stage, names, concurrency, measure_s)
        if not beyond.num_loads:
            raise RuntimeError(f"fit: {fits + 1} adapters were served without a load: all fit")
        what = f"adapters = what fits + 1, {concurrency} concurrent: time to first token p50"
        yield _row(what, inside, beyond) | {"fits": fits, "rank": stage.rank}


def _row(what: str, inside: Window, beyond: Window) -> Row:
    return figure(
        what,
        beyond.first_ms(50) / inside.first_ms(50),
        "ratio",
        first_ms_p50=round(beyond.first_ms(50), 2),
        first_ms_p50_fit=round(inside.first_ms(50), 2),
        first_ms_p99=round(beyond.first_ms(99), 2),
        first_ms_p99_fit=round(inside.first_ms(99), 2),
        tokens_per_s=round(beyond.tokens_per_s, 1),
        tokens_per_s_fit=round(inside.tokens_per_s, 1),
        num_loads=beyond.num_loads,
    )


def _loop(stage: Stage, names: list[str], concurrency: int, measure_s: float) -> Window:
    output_tokens = min(OUTPUT_TOKENS, stage.output_tokens)
    requests = ((name, output_tokens) for name in itertools.cycle(names))
    warm_s = WARM_SHARE * measure_s
    return closed_loop(stage.traffic("few"), requests, concurrency, warm_s, measure_s)
