"""python -m kernels.bench.gate: the GPU tests, dealt to many processes.

Most of their time is the compiler's, which uses one core. scripts/sanitize-kernels runs them under
compute-sanitizer through the same door.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

PYTEST = "-m pytest -q -m gpu -c /dev/null --rootdir=. --confcutdir=tests/kernels"
TEST_ID = re.compile(r"^(tests/kernels/\S+\.py::.+)$", re.MULTILINE)
NUM_PASSED = re.compile(r"(\d+) passed")
# A process starts in seconds, so few; but more than run at once, for tests are of unlike length.
CHUNKS_PER_PROCESS = 2
# Each with a thread a core would fight over them.
ONE_THREAD = ("env", "OMP_NUM_THREADS=1")


@dataclass(frozen=True)
class Chunk:
    """What one pytest process told."""

    num_passed: int
    code: int
    output: str


def run(
    select: str = "",
    under: Sequence[str] = (),
    num_processes: int | None = None,
    limit_s: float | None = None,
) -> bool:
    """Whether all pass, and there are any. What a failing process told goes to stderr.

    select: a -k expression. under: a command that starts each process.
    """
    num_processes = num_processes or max(1, (os.cpu_count() or 1) - 1)
    tests = collect(select)
    with ThreadPoolExecutor(num_processes) as executor:
        chunks = deal(tests, CHUNKS_PER_PROCESS * num_processes)
        told = list(executor.map(lambda chunk: _run_chunk(chunk, under, limit_s), chunks))
    failed = [chunk for chunk in told if chunk.code]
    for chunk in failed:
        print(chunk.output, file=sys.stderr)
    num_passed = sum(chunk.num_passed for chunk in told)
    print(
        f"gate: {num_passed} of {len(tests)} GPU tests passed, {len(failed)} of {len(told)} "
        "processes failed",
        file=sys.stderr,
    )
    return not failed and num_passed > 0


def collect(select: str) -> list[str]:
    """Ids of the GPU tests, in order. RuntimeError: they cannot be collected."""
    found = _pytest(["--collect-only", "-k", select, "tests/kernels"])
    if found.returncode:
        raise RuntimeError(f"gate: expected GPU tests for -k {select!r}, got\n{found.stdout}")
    return TEST_ID.findall(found.stdout)


def deal(tests: Sequence[str], num_chunks: int) -> list[Sequence[str]]:
    """Neighbours stay together: they use the same kernels, which are then compiled once."""
    size = max(1, -(-len(tests) // num_chunks))
    return [tests[start : start + size] for start in range(0, len(tests), size)]


def _run_chunk(tests: Sequence[str], under: Sequence[str], limit_s: float | None) -> Chunk:
    done = _pytest(["-x", *tests], under, limit_s)
    passed = NUM_PASSED.findall(done.stdout)
    return Chunk(int(passed[-1]) if passed else 0, done.returncode, done.stdout)


def _pytest(
    arguments: Sequence[str], under: Sequence[str] = (), limit_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Code 124: ended at the limit, with all that it had started."""
    pytest = [sys.executable, *PYTEST.split(), "-p", "no:cacheprovider"]
    command = [*ONE_THREAD, *under, *pytest, *arguments]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        late = f"{output}\ngate: not done in {limit_s} s: {' '.join(arguments)}"
        return subprocess.CompletedProcess(command, 124, late)
    return subprocess.CompletedProcess(command, process.returncode, output)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.bench.gate", description=__doc__)
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="only these, as pytest's -k")
    parser.add_argument("--processes", type=int, metavar="N", help="default: cores minus one")
    parser.add_argument("--limit", type=float, metavar="S", help="of each process, in seconds")
    under = "a command that starts each process, after --"
    parser.add_argument("under", nargs="*", metavar="COMMAND", help=under)
    options = parser.parse_args(argv)
    return not run(options.k, options.under, options.processes, options.limit)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
