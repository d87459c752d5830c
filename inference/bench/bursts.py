"""Bursts on a dummy model: requests that arrive together, greedy, each its own prompt.

One engine serves all bursts, in turn: what differs between two rows is their requests alone. A
step's time is the loop's wall time from plan to tokens read back: what a client waits.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference.bench.dummy_adapter import write_dummy_adapters
from inference.bench.shapes import spec_of
from inference.config import EngineConfig
from inference.engine import Engine
from inference.model_spec import ModelSpec
from inference.request import Event, GenerateRequest, SamplingParams, Token
from kernels.bench.timing import read_bytes_per_us

Row = dict[str, Any]


@dataclass(frozen=True)
class Burst:
    num_requests: int
    num_adapters: int

    def __str__(self) -> str:
        return f"{self.num_requests} requests, {self.num_adapters} adapters"


@dataclass
class Run:
    """steps_ms: steps in which every request decodes. first_s: each request's first token."""

    steps_ms: list[float] = field(default_factory=list)
    first_s: dict[str, float] = field(default_factory=dict)
    num_tokens: int = 0
    wall_s: float = 0.0


def burst(text: str) -> Burst:
    """ "64/16": requests, distinct adapters."""
    requests, slash, adapters = text.partition("/")
    if not (slash and requests.isdecimal() and adapters.isdecimal() and int(requests) > 0):
        raise argparse.ArgumentTypeError(f"expected REQUESTS/ADAPTERS, got {text!r}")
    return Burst(int(requests), int(adapters))


def measure_bursts(options: argparse.Namespace) -> Iterator[Row]:
    """Rows of tables B and C for every burst, in order."""
    spec = spec_of(options.shape) if options.shape else ModelSpec.load(options.model_path)
    engine = _engine(options, spec)
    _load_adapters(engine, options, spec)
    alone: dict[int, float] = {}
    for number, each in enumerate(options.bursts):
        # What is compiled or made at first use is not kept.
        _run(engine, each, options.prompt_tokens, 4, 2 * number)
        run = _run(engine, each, options.prompt_tokens, options.output_tokens, 2 * number + 1)
        yield _step_row(options, spec, engine, each, run)
        yield from _run_rows(each, run, alone)


def _engine(options: argparse.Namespace, spec: ModelSpec) -> Engine:
    most = max(each.num_requests for each in options.bursts)
    config = EngineConfig(
        options.model_path or options.shape,
        dtype=options.dtype,
        load_format="dummy",
        max_loras_per_batch=max(1, *(each.num_adapters for each in options.bursts)),
        max_lora_rank=options.rank,
        max_model_len=options.prompt_tokens + options.output_tokens + 1,
        max_num_seqs=most,
        prefix_cache=False,
        num_threads=options.threads,
        # The files are gone once loaded.
        host_adapter_bytes=1 << 40,
    )
    return Engine(config, spec)


def _load_adapters(engine: Engine, options: argparse.Namespace, spec: ModelSpec) -> None:
    count = max(each.num_adapters for each in options.bursts)
    with tempfile.TemporaryDirectory() as folder:
        for number, path in enumerate(
            write_dummy_adapters(Path(folder), spec, options.rank, count)
        ):
            engine.load_adapter(f"adapter-{number}", str(path))


def _run(engine: Engine, each: Burst, prompt_tokens: int, output_tokens: int, part: int) -> Run:
    run, started = Run(), time.perf_counter()

    def on_event(event: Event) -> None:
        if isinstance(event, Token):
            run.num_tokens += 1
            run.first_s.setdefault(event.request_id, time.perf_counter() - started)

    params = SamplingParams(output_tokens, temperature=0.0, ignore_eos=True)
    for number in range(each.num_requests):
        ids = _prompt(part * each.num_requests + number, prompt_tokens, engine.spec.vocab_size)
        name = f"adapter-{number % each.num_adapters}" if each.num_adapters else None
        digest = None if name is None else engine.resolve_adapter(name)
        engine.submit(GenerateRequest(f"{part}-{number}", ids, params, digest), on_event)
    while engine.state().num_waiting or engine.state().num_running:
        before, begun = run.num_tokens, time.perf_counter()
        engine.step()
        if run.num_tokens - before == each.num_requests:
            run.steps_ms.append((time.perf_counter() - begun) * 1e3)
    run.wall_s = time.perf_counter() - started
    # The first such step ends the prefill.
    run.steps_ms = run.steps_ms[1:]
    return run


def _prompt(number: int, length: int, vocab_size: int) -> tuple[int, ...]:
    return tuple((number * 7919 + i * 31) % vocab_size for i in range(length))


def _step_row(
    options: argparse.Namespace, spec: ModelSpec, engine: Engine, each: Burst, run: Run
) -> Row:
    if len(run.steps_ms) < 2:
        raise SystemExit(f"{each}: they never decode all together: too little KV memory?")
    context = options.prompt_tokens + options.output_tokens / 2
    return {
        "table": "B",
        "model": spec.name,
        "requests": each.num_requests,
        "adapters": each.num_adapters,
        "rank": options.rank if each.num_adapters else None,
        "prompt_tokens": options.prompt_tokens,
        "output_tokens": options.output_tokens,
        "step_ms": round(statistics.median(run.steps_ms), 3),
        "step_ms_p90": round(statistics.quantiles(run.steps_ms, n=10)[-1], 3),
        "floor_ms": _floor_ms(spec, engine, each, context, options.rank),
        "num_steps": len(run.steps_ms),
    }


def _floor_ms(
    spec: ModelSpec, engine: Engine, each: Burst, context: float, rank: int
) -> float | None:
    """Weights, keys and values, and adapters once, at the device's read bandwidth."""
    if engine.device.type == "cpu":
        return None
    shapes = spec.projections().values()
    weights = spec.num_layers * sum(i * o for i, o in shapes) + spec.vocab_size * spec.hidden_size
    adapter = spec.num_layers * rank * sum(i + o for i, o in shapes)
    kv = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * context
    elements = weights + each.num_adapters * adapter + each.num_requests * kv
    return round(elements * engine.dtype.itemsize / read_bytes_per_us() / 1e3, 3)


def _run_rows(each: Burst, run: Run, alone: dict[int, float]) -> Iterator[Row]:
    """alone: by number of requests, the median time to first token without adapters."""
    first = sorted(run.first_s.values())
    median = statistics.median(first)
    rate = run.num_tokens / run.wall_s
    yield {"table": "C", "what": f"output, {each}", "value": round(rate, 1), "unit": "tok/s"}
    for name, value in (("median", median), ("last", first[-1])):
        what = f"time to first token, {name}, {each}"
        yield {"table": "C", "what": what, "value": round(value * 1e3, 1), "unit": "ms"}
    if not each.num_adapters:
        alone[each.num_requests] = median
    elif each.num_requests in alone:
        what = f"time to first token with LoRA / without, {each}"
        ratio = median / alone[each.num_requests]
        yield {"table": "C", "what": what, "value": round(ratio, 3), "unit": "ratio"}
