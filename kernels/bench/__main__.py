"""python -m kernels.bench: the GPU tests first; if they pass, times as JSON lines.

python -m kernels.bench report FILE ... prints the tables that such lines make.
"""

import argparse
import datetime
import importlib
import importlib.metadata
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

import torch

from kernels.bench import grid, lora, report
from kernels.bench.backends import PEERS
from kernels.bench.cases import POINTS, RANKS
from kernels.bench.cases import grid as grid_points
from kernels.bench.lora import Pairs
from kernels.bench.measure import prepare

OPS = ("lora", "attention", "fused", "flat", "determinism", "grid")
GATE = "-m pytest tests/kernels -q -m gpu -c /dev/null --rootdir=. --confcutdir=tests/kernels"

Lines = Iterator[dict[str, object]]


class Parser(argparse.ArgumentParser):
    """Says a wrong argument in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"kernels.bench: {message}; --help tells more\n")


def main(argv: Sequence[str]) -> int:
    if argv[:1] == ["report"]:
        return report.main(argv[1:])
    options = _parser().parse_args(argv)
    if not torch.cuda.is_available():
        print("kernels.bench: needs a CUDA device", file=sys.stderr)
        return 2
    if options.gate and not _gate():
        print("kernels.bench: the GPU tests fail; nothing was timed", file=sys.stderr)
        return 1
    try:
        for op in options.ops or OPS:
            _write(_lines(op, options), options)
    except ValueError as error:
        print(f"kernels.bench: {error}", file=sys.stderr)
        return 1
    return report.main([options.results]) if options.results else 0


def _parser() -> Parser:
    parser = Parser(prog="python -m kernels.bench", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    ops = ", ".join(OPS)
    parser.add_argument("ops", nargs="*", type=_op, metavar="OP", help=f"{ops}; default: all")
    peers = "folder of the peers' kernels (k/) and their loader (bench/), timed beside ours"
    parser.add_argument("--peers", metavar="DIR", help=peers)
    names = f"which of them; default: {','.join(PEERS)}"
    parser.add_argument("--backends", type=_names, default=PEERS, metavar="NAMES", help=names)
    results = "append the lines to FILE and print its tables; default: lines on stdout"
    parser.add_argument("--results", metavar="FILE", help=results)
    points = "tokens/adapters of table A and the grid, as 64/16,1/1; default: all"
    parser.add_argument("--points", type=_pairs, metavar="LIST", help=points)
    ranks = "ranks of the grid; default: 8,16,32,64"
    parser.add_argument("--ranks", type=_numbers, default=RANKS, metavar="LIST", help=ranks)
    budget = "the grid starts no point later than so many seconds after its first; "
    budget += "a later call with the same --results goes on"
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="S", help=budget)
    gate = 'do not run the tests first; the lines then say "gate": false'
    parser.add_argument("--no-gate", dest="gate", action="store_false", help=gate)
    return parser


def _lines(op: str, options: argparse.Namespace) -> Lines:
    if op == "lora":
        return _table_a(options)
    if op == "grid":
        return _grid(options)
    lines: Lines = importlib.import_module(f"kernels.bench.{op}").run()
    return lines


def _table_a(options: argparse.Namespace) -> Lines:
    pairs = options.points or POINTS
    backends = prepare(lora.points(pairs), options.peers, options.backends)
    yield from lora.run(pairs, backends)


def _grid(options: argparse.Namespace) -> Lines:
    wanted, done = options.points, set[object]()
    if options.results and Path(options.results).is_file():
        lines = report.read([options.results])
        done = {grid.key(line) for line in lines if line["commit"] == _commit()}
    todo = [
        point
        for point in grid_points(options.ranks)
        if grid.point_key(point) not in done
        and (not wanted or (point.num_tokens, point.num_adapters) in wanted)
    ]
    if todo:
        backends = prepare(todo, options.peers, options.backends)
        yield from grid.run(todo, backends, time.monotonic() + options.budget)


def _write(lines: Lines, options: argparse.Namespace) -> None:
    common = _environment() | {"gate": options.gate}
    for line in lines:
        text = json.dumps(line | common | {"date": _now()})
        if options.results:
            with open(options.results, "a", encoding="utf-8") as file:
                file.write(text + "\n")
        else:
            print(text, flush=True)


def _gate() -> bool:
    command = [sys.executable, *GATE.split(), "-p", "no:cacheprovider"]
    return subprocess.run(command, stdout=sys.stderr).returncode == 0


def _environment() -> dict[str, object]:
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": importlib.metadata.version("triton"),
        "commit": _commit(),
        "modified": bool(_git("status", "--porcelain", "--", "kernels")),
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


def _op(text: str) -> str:
    return _checked(text, text in OPS, f"one of {', '.join(OPS)}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    _checked(text, all(part.isdigit() for part in parts), "numbers, as 8,16")
    ranks = tuple(int(part) for part in parts)
    _checked(text, set(ranks) <= set(RANKS), f"some of {RANKS}")
    return ranks


def _pairs(text: str) -> Pairs:
    pairs = [pair.split("/") for pair in text.split(",")]
    right = all(len(p) == 2 and all(n.isdigit() and int(n) for n in p) for p in pairs)
    _checked(text, right, "tokens/adapters, as 64/16,1/1")
    found = tuple((int(tokens), int(adapters)) for tokens, adapters in pairs)
    for tokens, adapters in found:
        _checked(text, adapters <= tokens, "no more adapters than tokens")
    return found


def _checked(text: str, holds: bool, expected: str) -> str:
    if not holds:
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text}")
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
