import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from openai import OpenAI

from inference.metrics import FrontMetrics
from inference.server.app import make_app
from inference.server.bridge import Bridge
from inference.server.model_folder import ModelFolder
from inference.server.replica import Loaded, Replica
from tests.inference.server.scripted import ScriptedEngine
from tests.tiny import make_adapter, make_base

ROOT_DIR = Path(__file__).resolve().parents[3]
# Left to the engine, KV takes 1 GiB; the tests share a small machine.
SMALL = ("--num-threads", "1", "--kv-cache-bytes", "8M", "--host-adapter-bytes", "64M")


@dataclass(frozen=True)
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The envelope's inside; the envelope must have exactly OpenAI's four keys."""
        assert set(self.json) == {"error"}, self.body
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        return error


@dataclass
class Server:
    """A replica behind a real socket."""

    url: str
    process: subprocess.Popen[str] | None = None

    def call(
        self,
        path: str,
        body: Any = None,
        raw: bytes | None = None,
        method: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answered:
        data = json.dumps(body).encode() if body is not None else raw
        given = {"Content-Type": "application/json"} | (headers or {})
        request = urllib.request.Request(self.url + path, data, given, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return Answered(response.status, dict(response.headers), response.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answered(error.code, dict(error.headers), error.read())

    def openai(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)


def start_replica(*flags: str, cwd: Path = ROOT_DIR) -> Server:
    """A real `python -m inference serve`, returned when it said that it is ready."""
    command = [sys.executable, "-m", "inference", "serve", "--port", "0", *SMALL, *flags]
    process = subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("ready: "):
            return Server(line.split()[-1], process)
    with process.stdout:
        process.wait(10)
    raise RuntimeError(f"the replica did not start: {''.join(lines)}")


def exit_status(server: Server) -> int:
    """Waits for the end of a process that was told to stop."""
    assert server.process is not None and server.process.stdout is not None
    with server.process.stdout:
        return server.process.wait(30)


def stop_replica(server: Server) -> int:
    assert server.process is not None
    server.process.terminate()
    return exit_status(server)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("front") / "tiny")


@pytest.fixture(scope="session")
def adapters(base: Path) -> dict[str, Path]:
    """Three adapters of different ranks, below one folder."""
    folder = base.parent / "adapters"
    return {
        "red": make_adapter(folder / "red", base, r=4, seed=1),
        "green": make_adapter(folder / "green", base, r=8, seed=2, targets=("q_proj", "v_proj")),
        "blue": make_adapter(folder / "blue", base, r=16, seed=3, use_rslora=True),
    }


@pytest.fixture(scope="session")
def server(base: Path, adapters: dict[str, Path]) -> Iterator[Server]:
    """The real engine in its own process: base "tiny", adapter "red"."""
    red, folder = adapters["red"], adapters["red"].parent
    flags = ("--model-path", str(base), "--lora-paths", f"red={red}", "--adapter-dir", str(folder))
    replica = start_replica(*flags)
    yield replica
    stop_replica(replica)


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[OpenAI]:
    with server.openai() as client:
        yield client


@pytest.fixture(scope="session")
def folder(base: Path) -> ModelFolder:
    return ModelFolder.load(str(base))


Scripted = Callable[..., Awaitable[tuple[ScriptedEngine, str]]]


@pytest.fixture
async def scripted(folder: ModelFolder) -> AsyncIterator[Scripted]:
    """start(tokens=…) → the scripted engine and the URL of the real front before it."""
    runners: list[web.AppRunner] = []
    engines: list[ScriptedEngine] = []

    async def start(**script: Any) -> tuple[ScriptedEngine, str]:
        engine = ScriptedEngine(folder.spec, **script)
        engines.append(engine)
        replica = Replica("tiny", (), Bridge(), FrontMetrics())
        replica.loaded = Loaded(folder, engine, engine.max_model_len)
        runner = web.AppRunner(make_app(replica), handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        runners.append(runner)
        return engine, f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for engine in engines:
        engine.join()
    for runner in runners:
        await runner.cleanup()
