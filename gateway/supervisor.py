"""Keeps child processes alive: started in order, restarted with backoff, stopped in reverse order.

Each child leads its own process group, so Ctrl-C in the terminal reaches the supervisor alone, and
what a dead child left behind is killed with its group. If the supervisor itself is killed, the
kernel kills the children: nothing of ours outlives it.
"""

import asyncio
import contextlib
import ctypes
import os
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

FIRST_DELAY_S = 0.2
MAX_DELAY_S = 10.0
# A child that lived this long starts again with the first delay.
HEALTHY_AFTER_S = 10.0
STOP_GRACE_S = 5.0
MAX_LOG_BYTES = 20 * 2**20
MAX_LINE_BYTES = 2**20
IMPORTANT = re.compile(rb"\b(ERROR|CRITICAL|FATAL)\b|^[\w.]*(Error|Exception)\b")
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Child:
    """One program; environment: variables beside the inherited ones; fds: files it inherits.

    is_shown: say each line of its output, not only errors.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    is_shown: bool = False
    fds: tuple[int, ...] = ()


class Supervisor:
    """say prints one line for a person; all output goes to log_dir/<child>.log."""

    def __init__(self, log_dir: Path, cwd: Path, say: Callable[[str], None]) -> None:
        self._log_dir, self._cwd, self._say = log_dir, cwd, say
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._num_ends: dict[str, int] = {}
        self._is_stopping = False
        log_dir.mkdir(parents=True, exist_ok=True)

    def start(self, child: Child) -> None:
        """Keep the child running from now on."""
        self._tasks[child.name] = asyncio.create_task(self._keep(child))

    def names(self) -> list[str]:
        return list(self._tasks)

    def num_ends(self, name: str) -> int:
        """How often the child has ended on its own."""
        return self._num_ends.get(name, 0)

    def log_path(self, name: str) -> Path:
        return self._log_dir / f"{name}.log"

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """TERM to each child, the last started first; KILL to what is still there after grace_s."""
        self._is_stopping = True
        for name, task in reversed(self._tasks.items()):
            if process := self._processes.get(name):
                _signal_group(process.pid, signal.SIGTERM)
                await asyncio.wait({task}, timeout=grace_s)
                _signal_group(process.pid, signal.SIGKILL)
            else:
                task.cancel()
            await asyncio.wait({task})

    async def _keep(self, child: Child) -> None:
        loop, delay_s = asyncio.get_running_loop(), FIRST_DELAY_S
        while True:
            started = loop.time()
            end = await self.run(child)
            if self._is_stopping:
                return
            self._num_ends[child.name] = self.num_ends(child.name) + 1
            if loop.time() - started > HEALTHY_AFTER_S:
                delay_s = FIRST_DELAY_S
            self._say(f"{child.name} ended ({end}), starting it again in {delay_s:g} s")
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, MAX_DELAY_S)

    async def run(self, child: Child) -> str:
        """One life of the child; how it ended, in words ("status 0"). Cancelling kills it."""
        read_end, write_end = os.pipe()
        copying = asyncio.create_task(self._copy_output(child, read_end))
        try:
            process = await self._spawn(child, write_end)
        except OSError as error:
            return f"cannot start {child.command[0]}: {error.strerror}"
        finally:
            os.close(write_end)
        self._processes[child.name] = process
        try:
            code = await process.wait()
        finally:
            del self._processes[child.name]
            _signal_group(process.pid, signal.SIGKILL)
            await asyncio.wait({copying}, timeout=1)
            copying.cancel()
        return f"status {code}" if code >= 0 else signal.Signals(-code).name

    async def _spawn(self, child: Child, output: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *child.command,
            cwd=self._cwd,
            # Not configuration: a child inherits all that this process was given.
            env={**os.environ, **child.environment},  # noqa: TID251
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=child.fds,
            start_new_session=True,
            preexec_fn=_die_with(os.getpid()),
        )

    async def _copy_output(self, child: Child, read_end: int) -> None:
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb")
        )
        log = _Log(self.log_path(child.name))
        with contextlib.closing(transport), contextlib.closing(log):
            while line := await _read_line(reader):
                log.write(line)
                if (child.is_shown or IMPORTANT.search(line)) and not self._is_stopping:
                    self._say(f"{child.name} | {line.decode(errors='replace').rstrip()}")


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ValueError:
        return b"(a line longer than 1 MiB was dropped)\n"


class _Log:
    """The child's output, and the file before it: twice MAX_LOG_BYTES, however long it runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)

    def write(self, line: bytes) -> None:
        if self._file.tell() > MAX_LOG_BYTES:
            self._file.close()
            self._path.replace(self._path.with_suffix(".log.1"))
            self._file = self._path.open("ab", buffering=0)
        self._file.write(line)

    def close(self) -> None:
        self._file.close()


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _die_with(parent: int) -> Callable[[], None]:
    """For the forked child, before it becomes its program: killed when its parent ends (Linux)."""

    def prepare() -> None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The parent may have died before the line above took hold.
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return prepare
