"""A tenant floods, another sends one request a second: who waits how long, by arrival and fairly.

The engine's own scheduler, adapters and KV books against a simulated clock: a step takes STEP_MS
and TOKEN_MS for each of its tokens, near an 8B model on an H200. By arrival is the same scheduler
with one tenant's name for all. Then what a call of schedule() itself takes of a CPU.
"""

import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.adapter import Adapter
from inference.adapter_pool import AdapterPool
from inference.bench.chart import Series, write_chart
from inference.kv_cache import KvCache
from inference.plan import Limits, Plan
from inference.request import GenerateRequest, SamplingParams
from inference.scheduler import Scheduler
from inference.sequence import Sequence

STEP_MS = 6.0
TOKEN_MS = 0.02
NUM_FLOOD = 200
FLOOD_AT_S = 5.0
END_S = 60
PROMPT_TOKENS = 256
OUTPUT_TOKENS = (128, 512)
LIMITS = Limits(max_num_seqs=32, max_batch_tokens=2048)
NUM_BLOCKS = 2048
BLOCK_SIZE = 16

NUM_WAITING = 10_000
NUM_TENANTS = 1_000
NUM_STEPS = 40


@dataclass
class Asked:
    """One request of the play; times in simulated seconds."""

    client: str
    arrived_s: float
    num_output: int
    wait_s: float = 0.0


def measure_fairness(chart: Path) -> Iterator[dict[str, Any]]:
    """Rows of waits, then rows of schedule()'s own time; writes the waits to chart, an SVG."""
    series = []
    for policy in ("by arrival", "fair"):
        asked = _play(policy == "fair")
        for client in ("steady", "flood"):
            waits = [one.wait_s for one in asked if one.client == client]
            yield _wait_row(policy, client, waits)
            points = [(one.arrived_s, one.wait_s) for one in asked if one.client == client]
            # All of the flood arrives at one time: its points would be one column.
            if client == "steady":
                series.append(Series(f"one request a second, {policy}", points))
    write_chart(chart, f"{NUM_FLOOD} requests of another tenant at {FLOOD_AT_S:g} s", series)
    yield from _schedule_rows()


def _wait_row(policy: str, client: str, waits: list[float]) -> dict[str, Any]:
    cuts = statistics.quantiles(waits, n=100, method="inclusive")
    return {
        "table": "fairness",
        "what": f"{client}, {policy}",
        "requests": len(waits),
        "wait_s_p50": round(cuts[49], 3),
        "wait_s_p99": round(cuts[98], 3),
        "wait_s_max": round(max(waits), 3),
        "simulated": True,
    }


def _play(is_fair: bool) -> list[Asked]:
    arrivals = _arrivals()
    scheduler = Scheduler(LIMITS, _cache(), AdapterPool(1, 1, 0))
    waiting: dict[str, Asked] = {}
    now_s, number = 0.0, 0
    while number < len(arrivals) or scheduler.num_running or scheduler.num_waiting:
        while number < len(arrivals) and arrivals[number].arrived_s <= now_s:
            one = arrivals[number]
            sequence = _sequence(number, one.client if is_fair else "", one.num_output)
            scheduler.add(sequence)
            waiting[sequence.request_id] = one
            number += 1
        plan = scheduler.schedule()
        _end_waits(waiting, plan, now_s)
        if plan.work:
            now_s += (STEP_MS + TOKEN_MS * sum(work.num_tokens for work in plan.work)) / 1e3
            _compute(scheduler, plan)
        else:
            now_s = arrivals[number].arrived_s
    return arrivals


def _arrivals() -> list[Asked]:
    chance = random.Random(1)
    asked = [Asked("steady", float(s), chance.randint(*OUTPUT_TOKENS)) for s in range(END_S)]
    asked += [Asked("flood", FLOOD_AT_S, chance.randint(*OUTPUT_TOKENS)) for _ in range(NUM_FLOOD)]
    return sorted(asked, key=lambda one: one.arrived_s)


def _end_waits(waiting: dict[str, Asked], plan: Plan, now_s: float) -> None:
    for work in plan.work:
        if (begun := waiting.pop(work.sequence.request_id, None)) is not None:
            begun.wait_s = now_s - begun.arrived_s


def _compute(scheduler: Scheduler, plan: Plan) -> None:
    """What a forward would bring: a token for each sequence that samples."""
    for adapter in plan.copies:
        scheduler.adapters.copied(adapter)
    for work in plan.work:
        scheduler.launched(work, 0 if work.samples else None)
        scheduler.computed(work)
        if not work.samples:
            continue
        work.sequence.take(0)
        if work.sequence.finish_reason(()) is not None:
            scheduler.finish(work.sequence)


def _sequence(number: int, tenant: str, num_output: int, digest: str | None = None) -> Sequence:
    ids = tuple((number * 7919 + i) % 50_000 for i in range(PROMPT_TOKENS))
    params = SamplingParams(num_output, temperature=0.0, ignore_eos=True)
    request = GenerateRequest(f"r{number}", ids, params, digest, tenant=tenant)
    return Sequence(request, lambda _: None, random.Random(0), 0.0)


def _cache(num_blocks: int = NUM_BLOCKS) -> KvCache:
    return KvCache(num_blocks, BLOCK_SIZE)


def _schedule_rows() -> Iterator[dict[str, Any]]:
    for what, max_active, num_blocks, has_adapters, num_ends in (
        ("256 running, no place", 1, 1 << 16, False, 0),
        ("no KV blocks", 1, 512, False, 0),
        ("1,000 adapters, no room for one", 64, 1 << 16, True, 0),
        ("64 admitted", 1, 1 << 16, False, 64),
        ("64 admitted, of 1,000 adapters", 256, 1 << 16, True, 64),
    ):
        scheduler = _crowded(max_active, num_blocks, has_adapters)
        times = [_timed_step(scheduler, num_ends) for _ in range(NUM_STEPS)]
        yield {
            "table": "schedule",
            "what": f"{NUM_WAITING} waiting of {NUM_TENANTS} tenants: {what}",
            "running": scheduler.num_running,
            "cpu_ms_best": round(min(times[1:]), 3),
            "cpu_ms_median": round(statistics.median(times[1:]), 3),
        }


def _crowded(max_active: int, num_blocks: int, has_adapters: bool) -> Scheduler:
    pool = AdapterPool(2 * NUM_TENANTS, max_active, 1 << 40)
    for number in range(NUM_TENANTS):
        adapter = pool.register(f"a{number}", Adapter(f"a{number}", "", 16, 2, 1))
        pool.start_read(adapter)
        pool.end_read(adapter, arrived=True)
    scheduler = Scheduler(Limits(256, 1 << 16), _cache(num_blocks), pool)
    for number in range(NUM_WAITING):
        own = number % NUM_TENANTS
        digest = f"a{own}" if has_adapters else None
        scheduler.add(_sequence(number, f"t{own}", 1 << 20, digest))
    return scheduler


def _timed_step(scheduler: Scheduler, num_ends: int) -> float:
    """CPU ms of one step's schedule(), whatever else runs; then num_ends of the running end."""
    started = time.thread_time()
    plan = scheduler.schedule()
    elapsed_ms = (time.thread_time() - started) * 1e3
    _compute(scheduler, plan)
    for work in plan.work[:num_ends]:
        scheduler.finish(work.sequence)
    return elapsed_ms
