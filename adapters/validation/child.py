"""The parent's side: start the child, feed it, keep time, read its verdict."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adapters.validation.check import CheckRequest
from adapters.validation.limits import ChildLimits

ROOT_DIR = Path(__file__).resolve().parent.parent.parent
MAX_VERDICT_BYTES = 4 << 20


class ValidationCrashed(Exception):
    """The child ended without a verdict; the message is fit for the tenant."""

    def __init__(self, message: str, is_clients_fault: bool) -> None:
        super().__init__(message)
        self.is_clients_fault = is_clients_fault


def run_child(
    request: CheckRequest,
    limits: ChildLimits,
    on_tick: Callable[[], None],
    tick_s: float = 2.0,
) -> dict[str, Any]:
    """A Verdict as JSON. on_tick is called about every tick_s seconds while the child works.

    Raises ValidationCrashed; is_clients_fault when the child ran out of what it was allowed.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "adapters.validation"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT_DIR,
        # None of our secrets, and one thread: numpy's would count against the address space.
        env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        start_new_session=True,
    )
    task = {"request": asdict(request), "limits": asdict(limits)}
    with process:
        try:
            out, err = _communicate(process, json.dumps(task).encode(), limits, on_tick, tick_s)
        except BaseException:
            process.kill()
            raise
    return _verdict(process.returncode, out, err)


def _communicate(
    process: "subprocess.Popen[bytes]",
    task: bytes,
    limits: ChildLimits,
    on_tick: Callable[[], None],
    tick_s: float,
) -> tuple[bytes, bytes]:
    left_s, unsent = limits.wall_s, task
    while True:
        try:
            return process.communicate(unsent or None, timeout=min(tick_s, left_s))
        except subprocess.TimeoutExpired:
            # communicate() remembers what it was given and refuses to be given it again.
            left_s, unsent = left_s - tick_s, b""
            if left_s <= 0:
                raise ValidationCrashed(
                    f"Checking took longer than {limits.wall_s:g} s and was stopped.", True
                ) from None
            on_tick()


def _verdict(returncode: int, out: bytes, err: bytes) -> dict[str, Any]:
    if returncode == 0 and len(out) <= MAX_VERDICT_BYTES:
        verdict: dict[str, Any] = json.loads(out)
        return verdict
    if returncode in (-signal.SIGXCPU, -signal.SIGXFSZ) or any(
        sign in err[-2000:] for sign in (b"MemoryError", b"File too large")
    ):
        raise ValidationCrashed("Checking needed more time, memory or space than allowed.", True)
    if returncode == -signal.SIGKILL:
        raise ValidationCrashed("Checking was stopped: out of time or memory.", False)
    last_line = err.decode(errors="replace").strip().rpartition("\n")[2]
    raise ValidationCrashed(f"Checking failed on our side: {last_line[:300]}", False)
