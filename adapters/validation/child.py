"""The parent's side: have a child forked, keep time, read its verdict."""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from adapters.validation.check import CheckRequest
from adapters.validation.limits import ChildLimits
from adapters.validation.progress import Progress, progress_file, read_progress
from adapters.validation.template import TemplateRequest

ROOT_DIR = Path(__file__).resolve().parent.parent.parent
MAX_VERDICT_BYTES = 4 << 20
# None of our secrets, and one thread: numpy's would count against the address space, and a process
# of several cannot be forked safely.
ENVIRONMENT = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE"), "1"
)


class ValidationCrashed(Exception):
    """The child ended without a verdict; the message is fit for the tenant."""

    def __init__(self, message: str, is_clients_fault: bool) -> None:
        super().__init__(message)
        self.is_clients_fault = is_clients_fault


class Nursery:
    """The process that this one's children are forked from; started anew when it died.

    It ends with this process, and its children with it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    @contextmanager
    def child(self, *files: int) -> Iterator[socket.socket]:
        """The line on which its exit code comes; left before that, the child is killed."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                self._send([*files, theirs.fileno()])
            yield ours

    def _send(self, descriptors: list[int]) -> None:
        with self._lock:
            try:
                socket.send_fds(self._channel or self._start(), [b"1"], descriptors)
            except OSError:
                # It was killed since the last time.
                socket.send_fds(self._start(), [b"1"], descriptors)

    def _start(self) -> socket.socket:
        self.close()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "adapters.validation.nursery"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                cwd=ROOT_DIR,
                env=ENVIRONMENT,
                start_new_session=True,
            )
        return self._channel

    def close(self) -> None:
        if self._channel is not None and self._process is not None:
            self._channel.close()
            self._process.wait()


@cache
def nursery() -> Nursery:
    return Nursery()


def run_child(
    request: CheckRequest | TemplateRequest,
    limits: ChildLimits,
    on_tick: Callable[[Progress | None], None] = lambda _: None,
    tick_s: float = 1.0,
) -> dict[str, Any]:
    """A Verdict as JSON. on_tick hears about every tick_s seconds where the working child is.

    Raises ValidationCrashed; is_clients_fault when the child ran out of what it was allowed.
    """
    fields = {"request": asdict(request), "limits": asdict(limits)}
    task = json.dumps({"kind": type(request).__name__, **fields})
    with memory("task") as given, memory("verdict") as out, memory("complaints") as err:
        os.pwrite(given, task.encode(), 0)
        with progress_file() as told, nursery().child(given, out, err, told) as line:
            code = _wait(line, limits, lambda: on_tick(read_progress(told)), tick_s)
        return _verdict(code, out, err)


@contextmanager
def memory(name: str) -> Iterator[int]:
    """A file without a place: no pipe that somebody would have to empty meanwhile."""
    descriptor = os.memfd_create(name)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _wait(
    line: socket.socket, limits: ChildLimits, on_tick: Callable[[], None], tick_s: float
) -> int | None:
    """The child's exit code; None when the nursery died."""
    left_s = limits.wall_s
    while not select.select([line], [], [], min(tick_s, left_s))[0]:
        left_s -= tick_s
        if left_s <= 0:
            raise ValidationCrashed(
                f"Checking took longer than {limits.wall_s:g} s and was stopped.", True
            )
        on_tick()
    told = line.recv(16)
    return int(told) if told else None


def _verdict(code: int | None, out: int, err: int) -> dict[str, Any]:
    if code == 0 and os.fstat(out).st_size <= MAX_VERDICT_BYTES:
        verdict: dict[str, Any] = json.loads(os.pread(out, MAX_VERDICT_BYTES, 0))
        return verdict
    complaint = os.pread(err, 2000, max(0, os.fstat(err).st_size - 2000))
    if code in (-signal.SIGXCPU, -signal.SIGXFSZ) or any(
        sign in complaint for sign in (b"MemoryError", b"File too large")
    ):
        raise ValidationCrashed("Checking needed more time, memory or space than allowed.", True)
    if code is None or code == -signal.SIGKILL:
        raise ValidationCrashed("Checking was stopped: out of time or memory.", False)
    last_line = complaint.decode(errors="replace").strip().rpartition("\n")[2]
    raise ValidationCrashed(f"Checking failed on our side: {last_line[:300]}", False)
