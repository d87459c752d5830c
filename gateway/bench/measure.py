"""What is measured, in the order in which it runs: each point of every target in turn."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gateway.bench.load import Job, Seen, Target
from gateway.bench.stage import CannotBench, Stage, play

Row = dict[str, Any]
CONCURRENCIES = (1, 16, 64)
ANSWER_TOKENS = 8
TOKENS_PER_S = 50.0
# Held streams say little. They must outlast the opening of all of them at the slower gateway.
HELD_TOKENS = 8
HELD_LENGTHS, GIVE_UP_LENGTHS = 6, 15
NUM_WARM_UP = 200


@dataclass(frozen=True)
class Effort:
    """seconds: of a point of answers at most, and of a paced stream; a sixth of a held one."""

    seconds: float = 6.0
    num_requests: int = 4000
    num_streams: int = 100
    num_held: int = 2000


def measure_answers(stage: Stage, effort: Effort) -> Iterator[Row]:
    for target in stage.targets():
        play(Job(target, 8, ANSWER_TOKENS, effort.seconds, min(NUM_WARM_UP, effort.num_requests)))
    for number in CONCURRENCIES:
        seen = {
            target.name: checked(target, play(answers(target, number, effort)))
            for target in stage.targets()
        }
        for percent in (50, 99):
            added = added_ms(seen, lambda one: one.answers_s, percent)
            yield row(f"added latency p{percent}, {number} at once", added, "ms")
    rates = {name: len(one.answers_s) / one.wall_s for name, one in seen.items()}
    yield row(f"requests/s, {CONCURRENCIES[-1]} at once", rates, "1/s")


def answers(target: Target, number: int, effort: Effort) -> Job:
    return Job(target, number, ANSWER_TOKENS, effort.seconds, effort.num_requests)


def measure_paced(stage: Stage, effort: Effort) -> Iterator[Row]:
    """The same while the cores are not full: clients that are answered as an engine answers, spread
    over the time that it takes.
    """
    stage.set_pace(TOKENS_PER_S)
    seen = {}
    for target in stage.targets():
        length_s = ANSWER_TOKENS / TOKENS_PER_S
        job = Job(target, 16, ANSWER_TOKENS, effort.seconds, effort.num_requests, spread_s=length_s)
        seen[target.name] = checked(target, play(job))
    for percent in (50, 99):
        added = added_ms(seen, lambda one: one.answers_s, percent)
        yield row(f"added latency p{percent}, 16 at once of {TOKENS_PER_S:g} tokens/s", added, "ms")
    stage.set_pace(0)


def measure_streams(stage: Stage, effort: Effort) -> Iterator[Row]:
    stage.set_pace(TOKENS_PER_S)
    num_tokens = max(2, int(TOKENS_PER_S * effort.seconds))
    seen = {}
    for target in stage.targets():
        job = Job(
            target, effort.num_streams, num_tokens, GIVE_UP_LENGTHS * effort.seconds, is_stream=True
        )
        # As the answers: a first request after a quiet time pays for what a house looks up anew.
        play(replace(job, num_tokens=2))
        seen[target.name] = checked(target, play(job))
    streams = f"{effort.num_streams} streams of {TOKENS_PER_S:g} tokens/s"
    first = added_ms(seen, lambda one: one.first_s, 99)
    yield row(f"added time to first token p99, {streams}", first, "ms")
    frames = added_ms(seen, lambda one: one.frames_s, 99)
    yield row(f"added delay per frame p99, {streams}", frames, "ms")
    stage.set_pace(0)


def measure_held(stage: Stage, effort: Effort) -> Iterator[Row]:
    stage.set_pace(HELD_TOKENS / (HELD_LENGTHS * effort.seconds))
    seen = {}
    for target in stage.targets()[1:]:
        limit_s = GIVE_UP_LENGTHS * effort.seconds
        job = Job(target, effort.num_held, HELD_TOKENS, limit_s, is_stream=True)
        seen[target.name] = told(target, play(job))
    held = f"{effort.num_held:,} open streams"
    yield row(f"{held}: open at once", each(seen, lambda one: one.max_open), "streams")
    yield row(f"{held}: dropped", each(seen, lambda one: one.num_failed), "streams")
    yield row(f"{held}: memory per stream", each(seen, stream_kib), "KiB")
    stage.set_pace(0)


MEASURES: dict[str, Callable[[Stage, Effort], Iterator[Row]]] = {
    "answers": measure_answers,
    "paced": measure_paced,
    "streams": measure_streams,
    "held": measure_held,
}


def checked(target: Target, seen: Seen) -> Seen:
    """Figures of ours and of the direct run are of whole runs; of LiteLLM's, what it answered."""
    if seen.num_failed and target.name != "litellm":
        raise CannotBench(f"{target.name}: {seen.num_failed} failed; the first: {seen.problem}")
    return told(target, seen)


def told(target: Target, seen: Seen) -> Seen:
    """As it is; a person reads what failed first."""
    if seen.num_failed:
        print(
            f"{target.name}: {seen.num_failed} failed; the first: {seen.problem}", file=sys.stderr
        )
    return seen


def stream_kib(seen: Seen) -> float | None:
    """None where they were not all open at once."""
    if not seen.open_bytes:
        return None
    return (seen.open_bytes - seen.idle_bytes) / 2**10 / seen.max_open


def each(seen: dict[str, Seen], value: Callable[[Seen], float | None]) -> dict[str, float | None]:
    return {name: value(one) for name, one in seen.items()}


def added_ms(
    seen: dict[str, Seen], times_s: Callable[[Seen], list[float]], percent: int
) -> dict[str, float]:
    """Above what the direct run has at the same percentile."""
    some = {name: times_s(one) for name, one in seen.items() if times_s(one)}
    at = {name: percentile(values, percent) for name, values in some.items()}
    return {name: 1000 * (value - at["direct"]) for name, value in at.items()} | {
        "direct": 1000 * at["direct"]
    }


def percentile(values: list[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def row(what: str, values: dict[str, Any], unit: str) -> Row:
    """ratio: ours / LiteLLM's; direct: what the dummy itself has, where the rest comes on top."""
    ours, peer = rounded(values["ours"]), rounded(values.get("litellm"))
    ratio = round(ours / peer, 4) if ours is not None and peer else None
    found = {"table": "E", "what": what, "ours": ours, "litellm": peer, "ratio": ratio}
    return found | {"direct": rounded(values.get("direct")), "unit": unit}


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
