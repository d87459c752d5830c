"""A replica as ARCHITECTURE.md states its HTTP, on a real socket, without a model behind it.

It reads the files that it is told to load, so a wrong path or digest shows. Tests set what fails.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from aiohttp import web

from inference.adapter_format import digest
from inference.request import AdapterInfo, EngineState
from tests.adapters.fake_scores import FakeScores
from tests.services import free_port


@dataclass
class FakeReplica:
    """adapters: name → digest, what it holds. failing: name → (status, code, message) for loads.

    running: name → requests that it says run with it.
    """

    port: int = field(default_factory=free_port)
    adapters: dict[str, str] = field(default_factory=dict)
    failing: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    loads: list[str] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    load_delay_s: float = 0.0
    # Names that are pinned, and that lie on disk only; every load says it anew.
    pinned: set[str] = field(default_factory=set)
    on_disk: set[str] = field(default_factory=set)
    max_pinned: int = 8
    max_lora_rank: int = 64
    scores: FakeScores = field(default_factory=FakeScores)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def state(self, request: web.Request) -> web.Response:
        infos = tuple(
            AdapterInfo(
                name,
                sha,
                8,
                "disk" if name in self.on_disk else "device",
                self.running.get(name, 0),
                name in self.pinned,
            )
            for name, sha in self.adapters.items()
        )
        num_running = sum(self.running.values())
        state = EngineState("tiny-base", 0, num_running, 64, 64, 512, self.max_lora_rank, 8, infos)
        return web.json_response(asdict(state))

    async def load(self, request: web.Request) -> web.Response:
        body = await request.json()
        name, folder = body["lora_name"], Path(body["lora_path"])
        self.loads.append(name)
        await asyncio.sleep(self.load_delay_s)
        if name in self.failing:
            return error(*self.failing[name])
        raw = (folder / "adapter_config.json").read_bytes()
        found = digest(raw, folder / "adapter_model.safetensors")
        if self.adapters.setdefault(name, found) != found:
            return error(409, "adapter_conflict", "other bytes")
        self.pinned.discard(name)
        if body.get("pinned") and len(self.pinned) >= self.max_pinned:
            return error(503, "overloaded", "cannot pin: all pages are pinned already")
        if body.get("pinned"):
            self.pinned.add(name)
        self.on_disk.discard(name)
        return web.json_response({"success": True, "lora_name": name, "digest": found, "rank": 8})

    async def unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        self.unloads.append(name)
        if self.adapters.pop(name, None) is None:
            return error(404, "model_not_found", "absent")
        return web.json_response({"success": True})

    async def answer(self, request: web.Request) -> web.Response:
        return await self.scores.answer(request, list(self.adapters))

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/state", self.state),
            web.post("/load_lora_adapter", self.load),
            web.post("/unload_lora_adapter", self.unload),
            web.post("/tokenize", self.scores.tokenize),
            web.post("/v1/completions", self.answer),
            web.post("/v1/chat/completions", self.answer),
        ]


class Server(Protocol):
    port: int

    def routes(self) -> list[web.RouteDef]: ...


Served = TypeVar("Served", bound=Server)


def error(status: int, code: str, message: str) -> web.Response:
    body: dict[str, Any] = {"message": message, "type": "x", "param": None, "code": code}
    return web.json_response({"error": body}, status=status)


@contextmanager
def running(replica: Served) -> Iterator[Served]:
    """Serves on a thread of its own until the block ends; then the port refuses."""
    loop = asyncio.new_event_loop()
    runner = loop.run_until_complete(_start(replica))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield replica
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _start(replica: Server) -> web.AppRunner:
    app = web.Application()
    app.add_routes(replica.routes())
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", replica.port).start()
    return runner
