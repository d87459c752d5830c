"""python -m kernels.bench: the GPU tests first; if they pass, times as JSON lines on stdout."""

import argparse
import datetime
import json
import subprocess
import sys

import torch
import triton

from kernels.bench import lora

GATE = "-m pytest tests/kernels -q -m gpu -c /dev/null --rootdir=. --confcutdir=tests/kernels"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.bench", description=__doc__)
    parser.add_argument("--points", help="tokens/adapters, as 64/16,1/1; default: table A")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("kernels.bench: needs a CUDA device", file=sys.stderr)
        return 2
    gate = [sys.executable, *GATE.split(), "-p", "no:cacheprovider"]
    if subprocess.run(gate, stdout=sys.stderr).returncode:
        print("kernels.bench: the GPU tests fail; nothing was timed", file=sys.stderr)
        return 1
    points = _points(arguments.points) if arguments.points else lora.POINTS
    for result in lora.run(points):
        print(json.dumps(result | _environment()), flush=True)
    return 0


def _points(text: str) -> tuple[tuple[int, int], ...]:
    pairs = (pair.split("/") for pair in text.split(","))
    return tuple((int(tokens), int(adapters)) for tokens, adapters in pairs)


def _environment() -> dict[str, object]:
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    """None outside a git checkout."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return found.stdout.strip() if found.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
