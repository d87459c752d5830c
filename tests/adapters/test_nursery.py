"""Children are forked from a process that has loaded all: each as alone as before, and mortal."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from adapters.validation.check import CheckRequest
from adapters.validation.child import ValidationCrashed, nursery, run_child
from adapters.validation.limits import ChildLimits
from inference.adapter_format import digest
from tests.tiny import make_adapter

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def request_for(folder: Path, base: Path) -> CheckRequest:
    return CheckRequest(str(folder), str(base), "tiny", 64, 1 << 26)


def digest_of(folder: Path, base: Path) -> str | None:
    verdict = run_child(request_for(folder, base), ChildLimits(), on_tick=lambda _: None)
    found: str | None = verdict["digest"]
    return found


def test_it_works(tmp_path: Path, base: Path) -> None:
    """Many at once: each gets its own verdict."""
    folders = [
        make_adapter(tmp_path / str(seed), base, targets=("q_proj",), seed=seed)
        for seed in range(8)
    ]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda folder: digest_of(folder, base), folders * 3))
    wanted = [digest((one / CONFIG).read_bytes(), one / WEIGHTS) for one in folders]
    assert found == wanted * 3 and len(set(wanted)) == 8


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """Whoever opens its config waits for ever."""
    folder = tmp_path / "endless"
    folder.mkdir()
    os.mkfifo(folder / CONFIG)
    return folder


def is_alive(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def until(probe: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not probe():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def children_of(process_id: int) -> list[int]:
    return [
        int(one)
        for one in Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()
    ]


def the_child() -> int:
    """Of this process's nursery."""
    process = nursery()._process
    assert process is not None
    until(lambda: bool(children_of(process.pid)))
    return children_of(process.pid)[0]


def test_the_wall_clock_ends_the_child(endless: Path, base: Path) -> None:
    seen: list[int] = []
    with pytest.raises(ValidationCrashed) as caught:
        run_child(
            request_for(endless, base),
            ChildLimits(wall_s=0.4),
            lambda _: seen.append(the_child()),
            tick_s=0.1,
        )
    assert caught.value.is_clients_fault and len(set(seen)) == 1
    until(lambda: not is_alive(seen[0]))


def test_the_child_has_its_four_files_its_limits_and_no_secret(endless: Path, base: Path) -> None:
    def look(_: object) -> None:
        here = Path(f"/proc/{the_child()}")
        opened = {path.name: os.readlink(path) for path in (here / "fd").iterdir()}
        assert set(opened) == {"0", "1", "2", "3"} and all("memfd" in to for to in opened.values())
        assert b"SECRET" not in (here / "environ").read_bytes()
        assert os.getsid(the_child()) == the_child() != os.getsid(0)
        limits = (here / "limits").read_text()
        assert f"Max address space         {1 << 30}" in limits
        raise InterruptedError

    with pytest.raises(InterruptedError):
        run_child(request_for(endless, base), ChildLimits(1 << 30), look, tick_s=0.3)


def test_a_killed_nursery_is_our_fault_and_there_is_another(endless: Path, base: Path) -> None:
    def kill(_: object) -> None:
        process = nursery()._process
        assert process is not None
        child = the_child()
        process.kill()
        process.wait()
        # What it leaves is bounded by its limits; this one would wait for ever.
        os.kill(child, signal.SIGKILL)

    with pytest.raises(ValidationCrashed) as caught:
        run_child(request_for(endless, base), ChildLimits(), kill, tick_s=0.1)
    assert not caught.value.is_clients_fault
    (endless / CONFIG).unlink()
    make_adapter(endless, base, targets=("q_proj",))
    assert digest_of(endless, base)


WORKER = """
import sys
from adapters.validation.check import CheckRequest
from adapters.validation.child import nursery, run_child
from adapters.validation.limits import ChildLimits

def tell(_):
    print(nursery()._process.pid, flush=True)

run_child(CheckRequest(*sys.argv[1:], "tiny", 64, 1 << 26), ChildLimits(), tell, tick_s=0.3)
"""


def test_a_killed_worker_leaves_no_nursery_and_no_child(endless: Path, base: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(endless), str(base)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        its_nursery = int(worker.stdout.readline())
        until(lambda: bool(children_of(its_nursery)))
        [child] = children_of(its_nursery)
        worker.kill()
    until(lambda: not is_alive(its_nursery) and not is_alive(child))
