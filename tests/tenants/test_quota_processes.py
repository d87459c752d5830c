"""One limit, asked by real processes over real sockets, one of which is killed."""

import asyncio
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tenants.quota import Quota
from tests.services import start_valkey
from tests.tenants.quota_hammer import CONCURRENCY, LIMITS, RPM
from tests.tenants.test_quota import Books, caller

ROOT_DIR = Path(__file__).resolve().parent.parent.parent
NUM_PROCESSES = 4
HOLD_S = 1.0


# (ms, sign, name)
Line = tuple[int, str, str]


def read_lines(process: "subprocess.Popen[str]") -> list[Line]:
    assert process.stdout is not None
    with process.stdout as output:
        parts = [line.split() for line in output if line.endswith("\n")]
    return [(int(ms), sign, name) for sign, ms, name in parts]


def names_of(lines: list[Line], sign: str) -> set[str]:
    return {name for _, one, name in lines if one == sign}


def most_at_once(lines: list[Line]) -> int:
    """Of what surely ran together: an end in the same millisecond comes first."""
    running, most = 0, 0
    for _, sign, _ in sorted(lines, key=lambda line: (line[0], line[1] == "+")):
        running += 1 if sign == "+" else -1
        most = max(most, running)
    return most


@pytest.mark.case("C135")
@pytest.mark.case("C133")
async def test_a_limit_holds_over_processes_and_a_kill() -> None:
    """Elsewhere each process read the balance before any wrote it, and what a killed one held was
    never given back. Here all of them together stay within it, and it all comes back.
    """
    store, url = start_valkey()
    tenant_id = secrets.randbelow(2**40)
    command = [sys.executable, "-m", "tests.tenants.quota_hammer", url, str(tenant_id)]
    processes = [
        subprocess.Popen(
            [*command, str(1 + number % 2), str(HOLD_S)],
            cwd=ROOT_DIR,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(NUM_PROCESSES)
    ]
    quota = Quota(ledger=Books(), url=url, hold_s=HOLD_S)
    sums = [f"quota:{{{tenant_id}}}:sums:{family_id}" for family_id in LIMITS]
    while await quota._client.exists(*sums) < len(sums):
        assert all(process.poll() is None for process in processes)
        await asyncio.sleep(0.05)
    await asyncio.sleep(1.5)
    processes[0].kill()
    await asyncio.sleep(1.5)
    for process in processes:
        process.kill()
        process.wait()
    lines = [read_lines(process) for process in processes]
    first, second = lines[0] + lines[2], lines[1] + lines[3]
    # All of it lies in one minute, and there was time for many times as much.
    assert RPM / 2 < len(names_of(second, "+")) <= RPM
    assert len(names_of(first, "+")) > 5 * CONCURRENCY
    cut = names_of(first, "+") - names_of(first, "-")
    assert 0 < len(cut) <= 2 * CONCURRENCY
    # What was cut by a kill is held, and counts, until it expires: it is left out here.
    assert most_at_once([line for line in first if line[2] not in cut]) <= CONCURRENCY
    await asyncio.sleep(HOLD_S)
    who = caller(tenant_id, 1, LIMITS[1])
    for number in range(CONCURRENCY):
        await quota.reserve(who, f"after-{number}", 1, 0)
    left = await quota._client.hgetall(sums[0])
    assert left["running"] == str(CONCURRENCY)
    assert await quota._client.zcard(f"quota:{{{tenant_id}}}:holds") == CONCURRENCY
    await quota.close()
    store.kill()
    store.wait()


def test_the_hammers_clock_is_shared() -> None:
    """Times of two processes can be compared."""
    code = "import time; print(time.monotonic_ns())"
    before = time.monotonic_ns()
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert before < int(told.stdout) < time.monotonic_ns()
