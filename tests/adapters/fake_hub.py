"""The hub's HTTP as its client speaks it, on a real socket: descriptions and files."""

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.services import free_port

COMMIT = "c0ffee" + "0" * 34
TOKEN = "hf_thetokenofthetest"


@dataclass
class Repo:
    files: dict[str, bytes]
    is_gated: bool = False
    # What the description says of a file's size, when it is not the truth.
    said_bytes: dict[str, int] = field(default_factory=dict)


@dataclass
class FakeHub:
    repos: dict[str, Repo] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    asked: list[str] = field(default_factory=list)
    is_down: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def refusal(self, request: web.Request, repo: Repo | None) -> web.Response | None:
        if self.is_down:
            return web.Response(status=503)
        # As the hub does: whoever may not see a repository is asked who they are.
        if repo is None:
            return web.Response(status=401, headers={"X-Error-Code": "RepoNotFound"})
        if repo.is_gated and request.headers.get("authorization") != f"Bearer {TOKEN}":
            return web.Response(status=403, headers={"X-Error-Code": "GatedRepo"})
        if request.match_info["revision"] not in ("main", COMMIT):
            return web.Response(status=404, headers={"X-Error-Code": "RevisionNotFound"})
        return None

    async def describe(self, request: web.Request) -> web.Response:
        name = "{owner}/{name}".format(**request.match_info)
        repo = self.repos.get(name)
        if refused := self.refusal(request, repo):
            return refused
        assert repo is not None
        siblings: list[dict[str, Any]] = [
            {"rfilename": path, "size": repo.said_bytes.get(path, len(data)), "blobId": "0" * 40}
            for path, data in repo.files.items()
        ]
        return web.json_response({"id": name, "sha": COMMIT, "siblings": siblings})

    async def resolve(self, request: web.Request) -> web.Response:
        repo = self.repos.get("{owner}/{name}".format(**request.match_info))
        if refused := self.refusal(request, repo):
            return refused
        assert repo is not None
        path = request.match_info["path"]
        if request.method == "GET":
            self.asked.append(path)
        if path not in repo.files:
            return web.Response(status=404, headers={"X-Error-Code": "EntryNotFound"})
        data = repo.files[path]
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
        return web.Response(body=data, headers=headers)


@contextmanager
def running(hub: FakeHub) -> Iterator[FakeHub]:
    loop = asyncio.new_event_loop()
    runner = loop.run_until_complete(_start(hub))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield hub
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _start(hub: FakeHub) -> web.AppRunner:
    app = web.Application()
    app.router.add_get("/api/models/{owner}/{name}/revision/{revision}", hub.describe)
    app.router.add_get("/{owner}/{name}/resolve/{revision}/{path:.+}", hub.resolve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", hub.port).start()
    return runner
