"""The supervisor over real processes."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.supervisor import Child, Supervisor

SLEEPER = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
# Ignores TERM, and has a grandchild in its group.
STUBBORN = (
    "import os, signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "grandchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    "print(os.getpid(), grandchild.pid, flush=True); time.sleep(60)"
)


def python(name: str, code: str, **environment: str) -> Child:
    return Child(name, (sys.executable, "-c", code), environment)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def until(probe: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not probe():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.02)


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
async def supervisor(tmp_path: Path, lines: list[str]) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(tmp_path, tmp_path, lines.append)
    yield supervisor
    await supervisor.stop(grace_s=0.5)


async def pids(supervisor: Supervisor, name: str, num_lives: int = 1) -> list[int]:
    """What the child printed at each of its starts."""

    def printed() -> list[int]:
        path = supervisor.log_path(name)
        return [int(word) for word in path.read_text().split()] if path.exists() else []

    await until(lambda: len(printed()) >= num_lives)
    return printed()


async def test_it_works(supervisor: Supervisor, lines: list[str]) -> None:
    supervisor.start(python("one", SLEEPER))
    [pid] = await pids(supervisor, "one")
    assert os.getpgid(pid) == pid
    await supervisor.stop()
    assert not is_alive(pid)
    assert lines == []


async def test_a_killed_child_is_started_again(supervisor: Supervisor, lines: list[str]) -> None:
    supervisor.start(python("one", SLEEPER))
    [first] = await pids(supervisor, "one")
    os.kill(first, signal.SIGKILL)
    _, second = await pids(supervisor, "one", num_lives=2)
    assert is_alive(second)
    assert supervisor.num_ends("one") == 1
    assert lines == ["one ended (SIGKILL), starting it again in 0.2 s"]


async def test_each_early_end_doubles_the_wait(supervisor: Supervisor, lines: list[str]) -> None:
    supervisor.start(python("one", "raise SystemExit(3)"))
    await until(lambda: len(lines) == 3)
    assert lines == [
        f"one ended (status 3), starting it again in {delay} s" for delay in ("0.2", "0.4", "0.8")
    ]


async def test_a_program_that_is_not_there(supervisor: Supervisor, lines: list[str]) -> None:
    supervisor.start(Child("one", ("/nowhere/program",)))
    await until(lambda: bool(lines))
    assert "cannot start /nowhere/program: No such file or directory" in lines[0]


async def test_what_a_dead_child_left_is_killed(supervisor: Supervisor) -> None:
    supervisor.start(python("one", STUBBORN))
    child, grandchild = await pids(supervisor, "one", num_lives=2)
    os.kill(child, signal.SIGKILL)
    await until(lambda: not is_alive(grandchild))


async def test_one_that_ignores_term_is_killed_with_its_group(supervisor: Supervisor) -> None:
    supervisor.start(python("one", STUBBORN))
    both = await pids(supervisor, "one", num_lives=2)
    started = time.monotonic()
    await supervisor.stop(grace_s=0.3)
    assert 0.3 <= time.monotonic() - started < 5
    await until(lambda: not any(is_alive(pid) for pid in both))


async def test_the_last_started_stops_first(supervisor: Supervisor, tmp_path: Path) -> None:
    order = tmp_path / "order"
    code = (
        "import os, signal, sys, time\n"
        "def end(*_):\n"
        f"    open({str(order)!r}, 'a').write(os.environ['NAME'] + ' ')\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(60)\n"
    )
    for name in ("store", "web", "worker"):
        supervisor.start(python(name, code, NAME=name))
        await pids(supervisor, name)
    await supervisor.stop()
    assert order.read_text().split() == ["worker", "web", "store"]


async def test_a_log_is_bounded_while_its_child_runs(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.supervisor.MAX_LOG_BYTES", 1000)
    supervisor.start(python("one", "for number in range(500): print(number, flush=True)"))
    path = supervisor.log_path("one")
    await until(lambda: path.exists() and "499\n" in path.read_text())
    lines = [*path.with_suffix(".log.1").read_text().split(), *path.read_text().split()]
    assert path.stat().st_size <= 1010
    # The end of all that was said, without a gap.
    assert lines[-100:] == [str(number) for number in range(400, 500)]


async def test_stopping_ends_the_wait_of_a_child_that_failed(supervisor: Supervisor) -> None:
    supervisor.start(python("one", "raise SystemExit(1)"))
    await until(lambda: supervisor.num_ends("one") == 4)
    started = time.monotonic()
    await supervisor.stop()
    assert time.monotonic() - started < 1


async def test_the_log_holds_all_and_the_terminal_what_matters(
    supervisor: Supervisor, lines: list[str]
) -> None:
    code = "print('x' * 2**21); print('hello'); print('ERROR broken', flush=True)"
    supervisor.start(python("one", code + "; import time; time.sleep(60)"))
    await until(lambda: len(lines) > 0)
    assert lines[0] == "one | ERROR broken"
    assert "hello\n" in supervisor.log_path("one").read_text()


def test_killed_itself_it_leaves_nothing(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from gateway.supervisor import Child, Supervisor\n"
        "async def main():\n"
        f"    supervisor = Supervisor(Path({str(tmp_path)!r}), Path('.'), print)\n"
        "    for name in ('one', 'two'):\n"
        f"        supervisor.start(Child(name, (sys.executable, '-c', {SLEEPER!r})))\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, str(program)], env={**os.environ, "PYTHONPATH": str(root)}, cwd=root
    )
    logs = [tmp_path / "one.log", tmp_path / "two.log"]

    def printed() -> bool:
        return all(log.exists() and log.read_text().strip() for log in logs)

    asyncio.run(until(printed))
    children = [int(log.read_text()) for log in logs]
    assert all(is_alive(pid) for pid in children)
    process.kill()
    process.wait()
    asyncio.run(until(lambda: not any(is_alive(pid) for pid in children), 5.0))
