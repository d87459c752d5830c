"""The tests before the times: dealt to processes, and none lost."""

import subprocess
import sys

import pytest

from kernels.bench import gate


def ended(output: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, output)


@pytest.mark.parametrize(("num_tests", "num_chunks"), [(1, 30), (29, 30), (428, 30), (7, 2)])
def test_every_test_is_dealt_once(num_tests: int, num_chunks: int) -> None:
    tests = [f"tests/kernels/test_x.py::test_{i}" for i in range(num_tests)]
    chunks = gate.deal(tests, num_chunks)
    assert [test for chunk in chunks for test in chunk] == tests
    assert len(chunks) <= num_chunks


@pytest.mark.parametrize(
    ("codes", "passes"), [((0, 0), True), ((0, 1), False), ((9, 0), False)], ids=str
)
def test_one_failing_process_shuts_the_gate(
    codes: tuple[int, ...], passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(codes)
    monkeypatch.setattr(gate, "collect", lambda select: ["a", "b"])
    monkeypatch.setattr(gate, "_pytest", lambda *_: ended("1 passed in 2s", left.pop()))
    assert gate.run(num_processes=1) is passes


def test_no_tests_at_all_shut_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "collect", lambda select: ["a"])
    monkeypatch.setattr(gate, "_pytest", lambda *_: ended("1 skipped in 2s"))
    assert not gate.run(num_processes=1)


def test_ids_are_read_as_pytest_prints_them() -> None:
    listed = "tests/kernels/test_a.py::test_x[gpu-bf16-a b]\n\n3/9 tests collected\n"
    assert gate.TEST_ID.findall(listed) == ["tests/kernels/test_a.py::test_x[gpu-bf16-a b]"]


def test_a_process_that_hangs_is_ended() -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    done = gate._pytest(["a-test"], under=sleeper, limit_s=0.2)
    assert done.returncode == 124 and "not done in 0.2 s" in done.stdout


def test_a_process_has_one_thread() -> None:
    asks = [sys.executable, "-c", "import os; print(os.environ['OMP_NUM_THREADS'])"]
    assert gate._pytest([], under=asks).stdout == "1\n"
