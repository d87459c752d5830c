"""The real server under streams, against the same burst offline.

`python -m inference serve` in its processes; the streams are read by aiohttp in processes of their
own (stream_client.py), so that the load is not the limit.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import IO, Any

from inference.bench.bursts import WARM_TOKENS, Burst, run_burst
from inference.bench.record import Row, figure
from inference.bench.stage import Stage
from inference.bench.traffic import tokens_per_s

ROOT = Path(__file__).parents[2]
NUM_CLIENTS = 4
MODEL = "bench"


def measure_served(stage: Stage) -> Iterator[Row]:
    """Output tokens/s over HTTP, and over that offline. Closes the stage's engines."""
    offline = mean(map(tokens_per_s, run_burst(stage, Burst(stage.max_requests, 0))))
    yield from stage.take_setup()
    stage.close()
    with _server(stage) as url, _clients(stage, url) as clients:
        _round(clients, WARM_TOKENS)
        rounds = [_round(clients, stage.output_tokens) for _ in range(stage.repeats)]
    served = mean(_rate(answers) for answers in rounds)
    first = median(time for answers in rounds for one in answers for time in one["first_s"])
    more: dict[str, Any] = {
        "tokens_per_s": round(served, 1),
        "tokens_per_s_offline": round(offline, 1),
        "first_ms_p50": round(first * 1e3, 1),
        "client_processes": len(clients),
    }
    what = f"HTTP server / offline, {stage.max_requests} streams"
    yield figure(what, served / offline, "ratio", **more)


@contextmanager
def _server(stage: Stage) -> Iterator[str]:
    """Its URL, once it is ready."""
    command = [sys.executable, "-m", "inference", "serve", *_flags(stage)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        yield _ready_url(process.stdout)
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def _flags(stage: Stage) -> list[str]:
    values = {
        "model-path": stage.model_folder(),
        "served-model-name": MODEL,
        "load-format": stage.config.get("load_format", "dummy"),
        "dtype": stage.config.get("dtype", "auto"),
        "device": stage.config.get("device", "auto"),
        "port": 0,
        "max-num-seqs": stage.max_requests,
        "max-model-len": stage.prompt_tokens + stage.output_tokens + 1,
        "max-loras-per-batch": stage.places["few"],
        "max-lora-rank": stage.rank,
        "grace-s": 1,
    }
    flags = [text for key, value in values.items() for text in (f"--{key}", str(value))]
    return [*flags, "--no-prefix-cache"]


def _ready_url(lines: IO[str]) -> str:
    for line in lines:
        if line.startswith("ready:"):
            return line.split()[-1]
    raise RuntimeError("served: the server did not start; its lines above say why")


@contextmanager
def _clients(stage: Stage, url: str) -> Iterator[list["subprocess.Popen[str]"]]:
    """Processes that wait for rounds; the streams are dealt evenly."""
    count = min(NUM_CLIENTS, stage.max_requests)
    module = [sys.executable, "-m", "inference.bench.stream_client", url, MODEL]
    shares = [len(range(i, stage.max_requests, count)) for i in range(count)]
    numbers = [str(stage.prompt_tokens), str(stage.spec.vocab_size)]
    commands = [[*module, str(share), *numbers, str(i)] for i, share in enumerate(shares)]
    pipe = subprocess.PIPE
    clients = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)
        for command in commands
    ]
    try:
        for client in clients:
            _line(client)
        yield clients
    finally:
        for client in clients:
            client.communicate()


def _round(clients: list["subprocess.Popen[str]"], output_tokens: int) -> list[dict[str, Any]]:
    """All streams at once, to their ends; what each client saw."""
    for client in clients:
        assert client.stdin is not None
        client.stdin.write(f"{output_tokens}\n")
        client.stdin.flush()
    return [json.loads(_line(client)) for client in clients]


def _line(client: "subprocess.Popen[str]") -> str:
    assert client.stdout is not None
    line = client.stdout.readline()
    if not line:
        raise RuntimeError("served: a client ended; its lines above say why")
    return line


def _rate(answers: list[dict[str, Any]]) -> float:
    """From the first request sent to the last token, over all clients."""
    begin_s = min(one["begin_s"] for one in answers)
    end_s = max(one["end_s"] for one in answers)
    return float(sum(one["num_tokens"] for one in answers) / (end_s - begin_s))
