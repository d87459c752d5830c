"""The processes of a run: the dummy, our house and LiteLLM, all in one scratch folder."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from gateway.bench import litellm
from gateway.bench.limits import MODEL
from gateway.bench.load import Job, Seen, Target

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
POLL_INTERVAL_S = 0.1


class CannotBench(Exception):
    """A part did not come up; the message says which, and where its log is."""


@dataclass(frozen=True)
class Stage:
    """litellm: None where it could not be installed."""

    direct: Target
    ours: Target
    litellm: Target | None

    def targets(self) -> list[Target]:
        return [self.direct, self.ours, *([self.litellm] if self.litellm else [])]

    def set_pace(self, tokens_per_s: float) -> None:
        """Of the streams that begin from now on; 0: all tokens at once."""
        url = f"http://127.0.0.1:{self.direct.port}/pace/{tokens_per_s}"
        with urllib.request.urlopen(url, timeout=10):
            pass


def play(job: Job) -> Seen:
    """By a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway.bench.load"],
        cwd=ROOT,
        input=json.dumps(asdict(job)).encode(),
        stdout=subprocess.PIPE,
        check=True,
    )
    return Seen(**json.loads(done.stdout))


@contextmanager
def stage(scratch: Path, has_litellm: bool) -> Iterator[Stage]:
    scratch.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        port = free_port()
        command = [sys.executable, "-m", "gateway.bench.dummy", str(port)]
        dummy = stack.enter_context(running("dummy", command, scratch, {}))
        wait_for("dummy", dummy, f"http://127.0.0.1:{port}/state", scratch)
        direct = Target("direct", port, MODEL)
        upstream_url = f"http://127.0.0.1:{port}"
        ours = stack.enter_context(our_house(scratch, upstream_url))
        peer = stack.enter_context(their_proxy(scratch, upstream_url)) if has_litellm else None
        yield Stage(direct, ours, peer)


@contextmanager
def our_house(scratch: Path, upstream_url: str) -> Iterator[Target]:
    with tempfile.TemporaryDirectory(prefix="house-", dir=scratch) as folder:
        environment = house_environment(Path(folder), upstream_url)
        command = [sys.executable, "-m", "gateway.bench.ours"]
        with running("ours", command, scratch, environment) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise CannotBench(f"ours did not start; see {scratch / 'ours.log'}")
            yield Target(name="ours", model=MODEL, **json.loads(line))


def house_environment(folder: Path, upstream_url: str) -> dict[str, str]:
    return {
        "VAR_DIR": str(folder),
        "DATABASE_URL": f"sqlite:///{folder / 'grafthouse.sqlite3'}",
        "DJANGO_SETTINGS_MODULE": "gateway.settings",
        "REPLICA_URLS": upstream_url,
        "MODEL_NAME": "dummy",
        "PORT": str(free_port()),
    }


@contextmanager
def their_proxy(scratch: Path, upstream_url: str) -> Iterator[Target | None]:
    """None, with a line that says why, where it cannot be installed."""
    try:
        program = litellm.install(scratch / f"litellm-{litellm.VERSION}")
    except litellm.CannotInstall as error:
        print(f"without LiteLLM, which cannot be installed: {error}", file=sys.stderr)
        yield None
        return
    port = free_port()
    config = litellm.configure(scratch / "litellm", upstream_url)
    command = litellm.command(program, config, port)
    with running("litellm", command, scratch, litellm.ENVIRONMENT) as process:
        wait_for("litellm", process, f"http://127.0.0.1:{port}/health/liveliness", scratch)
        yield Target("litellm", port, MODEL, litellm.KEY, process.pid)


@contextmanager
def running(
    name: str, command: list[str], scratch: Path, more: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Its errors go to scratch/NAME.log. Stopped by the end of its input, then by TERM."""
    # Not configuration: a child inherits all that this process was given, but no store or key.
    mine = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}  # noqa: TID251
    pipe = subprocess.PIPE
    with (scratch / f"{name}.log").open("wb") as log:
        output = pipe if name == "ours" else log
        process = subprocess.Popen(
            command, cwd=ROOT, env=mine | more, stdin=pipe, stdout=output, stderr=log
        )
    try:
        yield process
    finally:
        stop(process, is_asked=name == "ours")


def stop(process: subprocess.Popen[bytes], is_asked: bool) -> None:
    if process.stdin is not None:
        process.stdin.close()
    if not is_asked:
        process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def wait_for(name: str, process: subprocess.Popen[bytes], url: str, scratch: Path) -> None:
    until_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until_s and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(POLL_INTERVAL_S)
    raise CannotBench(f"{name} did not start; see {scratch / f'{name}.log'}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
