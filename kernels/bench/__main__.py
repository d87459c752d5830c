"""python -m kernels.bench: the GPU tests first; if they pass, times as JSON lines.

python -m kernels.bench report FILE ... prints the tables that such lines make.
"""

import argparse
import datetime
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import torch

from kernels.bench import gate, grid, lora, report
from kernels.bench.arguments import OPS, parser
from kernels.bench.cases import POINTS
from kernels.bench.cases import grid as grid_points
from kernels.bench.measure import prepare

Lines = Iterator[dict[str, object]]


def main(argv: Sequence[str]) -> int:
    if argv[:1] == ["report"]:
        return report.main(argv[1:])
    options = parser(__doc__).parse_intermixed_args(argv)
    if not torch.cuda.is_available():
        print("kernels.bench: needs a CUDA device", file=sys.stderr)
        return 2
    if options.gate and not gate.run():
        print("kernels.bench: the GPU tests fail; nothing was timed", file=sys.stderr)
        return 1
    try:
        for op in options.ops or OPS:
            _write(_lines(op, options), options)
    except ValueError as error:
        print(f"kernels.bench: {error}", file=sys.stderr)
        return 1
    return report.main([options.results]) if options.results else 0


def _lines(op: str, options: argparse.Namespace) -> Lines:
    if op == "lora":
        return _table_a(options)
    if op == "grid":
        return _grid(options)
    lines: Lines = importlib.import_module(f"kernels.bench.{op}").run()
    return lines


def _table_a(options: argparse.Namespace) -> Lines:
    pairs = options.points or POINTS
    backends, line = prepare(lora.points(pairs), options.peers, options.backends, in_fp8=True)
    yield line
    yield from lora.run(pairs, backends)


def _grid(options: argparse.Namespace) -> Lines:
    wanted, done = options.points, set[object]()
    if options.results and Path(options.results).is_file():
        lines = report.read([options.results])
        done = {grid.key(line) for line in lines if line["commit"] == (options.commit or _commit())}
    todo = [
        point
        for point in grid_points(options.ranks)
        if grid.point_key(point) not in done
        and (not wanted or (point.num_tokens, point.num_adapters) in wanted)
    ]
    if todo:
        backends, line = prepare(todo, options.peers, options.backends)
        yield line
        yield from grid.run(todo, backends, time.monotonic() + options.budget)


def _write(lines: Lines, options: argparse.Namespace) -> None:
    common = _environment(options.commit) | {"gate": options.gate}
    for line in lines:
        text = json.dumps(line | common | {"date": _now()})
        if options.results:
            with open(options.results, "a", encoding="utf-8") as file:
                file.write(text + "\n")
        else:
            print(text, flush=True)


def _environment(commit: str | None) -> dict[str, object]:
    """commit: where the tree came from, if it was copied without its history."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": importlib.metadata.version("triton"),
        "commit": commit or _commit(),
        "modified": None if commit else bool(_git("status", "--porcelain", "--", "kernels")),
    }


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@cache
def _commit() -> str | None:
    return _git("rev-parse", "HEAD")


def _git(*arguments: str) -> str | None:
    """None outside a git checkout."""
    try:
        found = subprocess.run(["git", *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return found.stdout.strip() if found.returncode == 0 else None


def while_read(run: Callable[[], int]) -> int:
    """run's code; 141, as of a process that SIGPIPE ends, once nobody reads stdout (`| head`)."""
    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:
        # Flushed once more at the exit: to nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


if __name__ == "__main__":
    sys.exit(while_read(lambda: main(sys.argv[1:])))
