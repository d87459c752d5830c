"""Decode steps of a dummy model: requests admitted together, each its own prompt, greedy.

A step's time is the loop's wall time from plan to tokens read back: what a client waits.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inference.bench.dummy_adapter import write_dummy_adapter
from inference.bench.shapes import spec_of
from inference.config import EngineConfig
from inference.engine import Engine
from inference.model_spec import ModelSpec
from inference.request import Event, GenerateRequest, SamplingParams


def measure_decode(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row: median decode step in ms and output tokens/s over the decode steps."""
    spec = spec_of(options.shape) if options.shape else ModelSpec.load(options.model_path)
    engine = _engine(options, spec)
    _load_adapters(engine, options, spec)
    # The first round compiles and warms; its figures are not kept.
    for number in range(2):
        _submit(engine, options, spec, number)
        steps_ms = _decode_steps(engine, options.requests)
    if len(steps_ms) < 2:
        raise SystemExit("the requests never decode all together: too little KV memory?")
    median_ms = statistics.median(steps_ms)
    stats = engine.stats()
    yield {
        "table": "decode",
        "what": f"{spec.name}, {options.requests} requests, {options.adapters} adapters",
        "requests": options.requests,
        "adapters": options.adapters,
        "rank": options.rank if options.adapters else None,
        "prompt_tokens": options.prompt_tokens,
        "step_ms_median": round(median_ms, 3),
        "step_ms_p90": round(statistics.quantiles(steps_ms, n=10)[-1], 3),
        "ours": round(options.requests * 1e3 / median_ms, 1),
        "unit": "tok/s",
        "lora_ms_share": round(stats.lora_ms_total / stats.step_ms_total, 4),
        "num_steps": len(steps_ms),
    }


def _engine(options: argparse.Namespace, spec: ModelSpec) -> Engine:
    length = options.prompt_tokens + options.output_tokens + 1
    config = EngineConfig(
        options.model_path or options.shape,
        dtype=options.dtype,
        load_format="dummy",
        max_loras_per_batch=max(options.adapters, 1),
        max_lora_rank=options.rank,
        max_model_len=length,
        max_num_seqs=options.requests,
        num_threads=options.threads,
        # The files are gone once loaded.
        host_adapter_bytes=1 << 40,
    )
    return Engine(config, spec)


def _load_adapters(engine: Engine, options: argparse.Namespace, spec: ModelSpec) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.adapters):
            path = write_dummy_adapter(Path(folder) / str(number), spec, options.rank, number)
            engine.load_adapter(f"adapter-{number}", str(path))


def _submit(engine: Engine, options: argparse.Namespace, spec: ModelSpec, part: int) -> None:
    params = SamplingParams(options.output_tokens, temperature=0.0, ignore_eos=True)
    for number in range(options.requests):
        start = part * options.requests + number
        ids = tuple((start * 7919 + i * 31) % spec.vocab_size for i in range(options.prompt_tokens))
        name = f"adapter-{number % options.adapters}" if options.adapters else None
        digest = None if name is None else engine.resolve_adapter(name)
        engine.submit(GenerateRequest(f"{part}-{number}", ids, params, digest), _ignore)


def _decode_steps(engine: Engine, num_requests: int) -> list[float]:
    """Times in ms of the steps in which every request decodes."""
    times = []
    tokens = engine.stats().num_output_tokens
    while engine.state().num_waiting or engine.state().num_running:
        started = time.perf_counter()
        engine.step()
        elapsed_ms = (time.perf_counter() - started) * 1e3
        made, tokens = engine.stats().num_output_tokens - tokens, engine.stats().num_output_tokens
        if made == num_requests:
            times.append(elapsed_ms)
    # The first such step ends the prefill.
    return times[1:]


def _ignore(_: Event) -> None:
    pass
