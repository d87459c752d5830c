"""What a prompt that arrives costs the requests that run: the step that it shares with them."""

import itertools
import statistics
from collections.abc import Iterator

from inference.bench.record import Row, figure
from inference.bench.stage import Stage
from inference.bench.traffic import Traffic

STREAM_PROMPT_TOKENS = 16
# Steps from one arrival to the next; with overlap a prompt's step is one of the next two.
EVERY = 8
ADAPTERS = (0, 64)


def measure_arrivals(stage: Stage) -> Iterator[Row]:
    """A quarter of the requests that may run decode; every EVERY steps a prompt comes, one token
    to generate. The slowest of as many steps as there were prompts, in the median.
    """
    num_streams = max(1, stage.max_requests // 4)
    for wanted in ADAPTERS:
        if stage.left_s <= 0:
            return
        count = min(wanted, stage.places["many"])
        names = stage.adapters("many", stage.rank, count) if count else [None]
        yield from stage.take_setup()
        # What is compiled, copied or made at first use is not kept.
        for _ in range(2):
            steps_ms, num_prompts = _run(stage, list(names), num_streams)
        what = f"step of {num_streams} others with a prompt in it, {count} adapters"
        yield _row(stage, what, steps_ms, num_prompts)


def _row(stage: Stage, what: str, steps_ms: list[float], num_prompts: int) -> Row:
    ordered = sorted(steps_ms)
    with_prompt, without = ordered[-num_prompts:], ordered[:-num_prompts]
    return figure(
        what,
        statistics.median(with_prompt),
        "ms",
        prompt_tokens=stage.prompt_tokens,
        step_ms=round(statistics.median(without), 3),
        step_ms_max=round(ordered[-1], 3),
        num_prompts=num_prompts,
        prompt_graphs=stage.config.get("prompt_graphs", True),
    )


def _run(stage: Stage, names: list[str | None], num_streams: int) -> tuple[list[float], int]:
    """Times between a stream's tokens in ms; prompts that came between them."""
    output_tokens = stage.output_tokens
    traffic = Traffic(stage.engine("many"), STREAM_PROMPT_TOKENS, output_tokens)
    sent = [traffic.send(names[i % len(names)]) for i in range(num_streams)]
    while any(not one.token_s for one in sent):
        traffic.step()
    first, num_prompts = len(sent[0].token_s), 0
    for number in itertools.count(1):
        if len(sent[0].token_s) + EVERY >= output_tokens:
            break
        if number % EVERY == 0:
            name = names[num_prompts % len(names)]
            traffic.send(name, prompt_tokens=stage.prompt_tokens, output_tokens=1)
            num_prompts += 1
        traffic.step()
    times = sent[0].token_s[first - 1 :]
    traffic.drain()
    return [(b - a) * 1e3 for a, b in itertools.pairwise(times)], num_prompts
