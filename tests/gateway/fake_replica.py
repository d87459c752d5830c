"""A replica on a real socket that keeps the replica contract and fails on demand.

The real engine serves in test_engine.py; what it cannot be made to do (answer with another
digest, die after the third token) is done here.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

PROMPT_TOKENS = 12
CACHED_TOKENS = 4


@dataclass
class Behaviour:
    """What the next requests meet. die_after: tokens sent before the connection breaks; hold_after:
    before nothing more comes.
    """

    status: int = 200
    error: dict[str, Any] = field(default_factory=dict)
    # Only a request with max_tokens is refused.
    refuses_limits: bool = False
    die_after: int | None = None
    error_after: int | None = None
    error_code: str = "non_finite_logits"
    hold_after: int | None = None
    # Its frames are no JSON.
    is_malformed: bool = False
    fingerprint: str | None = None
    token_interval_s: float = 0.0
    silent_s: float = 0.0
    tokens: list[str] = field(default_factory=lambda: ["Hello", " wor", "ld", "!", " ✓"])


class FakeReplica:
    def __init__(self) -> None:
        self.behaviour = Behaviour()
        # What a chat meets instead whose last message is the name.
        self.moods: dict[str, Behaviour] = {}
        self.digests: set[str] = set()
        self.bodies: list[dict[str, Any]] = []
        # By cache salt, as the engine's queue tells tenants apart.
        self.weights: dict[str, str] = {}
        self.num_running = 0
        self.num_aborted = 0
        # Sent, of all requests.
        self.num_tokens = 0
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, after stop() on the same port again."""
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=16 * 2**20)
        app.add_routes(
            [
                web.get("/state", self._state),
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._complete),
            ]
        )
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _state(self, request: web.Request) -> web.Response:
        adapters = [
            {"name": one, "digest": one, "rank": 8, "tier": "device"} for one in self.digests
        ]
        state = {"model": "tiny", "num_waiting": 0, "num_running": self.num_running}
        limits = {"max_model_len": 2048, "max_lora_rank": 64, "max_loras_per_batch": 8}
        return web.json_response(state | limits | {"adapters": adapters})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, is_chat=True)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, is_chat=False)

    async def _answer(self, request: web.Request, is_chat: bool) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.weights[body["cache_salt"]] = request.headers["x-tenant-weight"]
        said = body["messages"][-1]["content"] if is_chat else None
        behaviour = self.moods.get(str(said), self.behaviour)
        if behaviour.status != 200 and ("max_tokens" in body or not behaviour.refuses_limits):
            return web.json_response({"error": behaviour.error}, status=behaviour.status)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        self.num_running += 1
        try:
            await response.prepare(request)
            async for frame in self._frames(body, behaviour, is_chat):
                await response.write(f"data: {frame}\n\n".encode())
        except asyncio.CancelledError:
            self.num_aborted += 1
            raise
        except ConnectionResetError:
            self.num_aborted += 1
            return response
        except BrokenPipeError:
            assert request.transport is not None
            request.transport.abort()
            return response
        finally:
            self.num_running -= 1
        return response

    async def _frames(
        self, body: dict[str, Any], behaviour: Behaviour, is_chat: bool
    ) -> AsyncIterator[str]:
        digest = body["model"] if body["model"] in self.digests else "base"
        fingerprint = behaviour.fingerprint or digest
        await asyncio.sleep(behaviour.silent_s)
        num_choices = body.get("n", 1)
        if behaviour.is_malformed:
            yield "{"
            return
        if is_chat:
            for index in range(num_choices):
                delta = {"role": "assistant", "content": ""}
                yield chunk([chat(index, delta)], 0, fingerprint)
        total = 0
        for number, text in enumerate(behaviour.tokens[: body.get("max_tokens")]):
            for index in range(num_choices):
                if number == behaviour.die_after:
                    raise BrokenPipeError
                if number == behaviour.error_after:
                    error: dict[str, Any] = {"message": "it failed", "type": "server_error"}
                    yield json.dumps(
                        {"error": error | {"param": None, "code": behaviour.error_code}}
                    )
                    yield "[DONE]"
                    return
                total += 1
                choice = chat(index, {"content": text}) if is_chat else legacy(index, text)
                yield chunk([choice], total, fingerprint)
                self.num_tokens += 1
            if number + 1 == behaviour.hold_after:
                await asyncio.sleep(3600)
            await asyncio.sleep(behaviour.token_interval_s)
        for index in range(num_choices):
            last = chat(index, {}) if is_chat else legacy(index, "")
            is_cut = body.get("max_tokens", 10**6) <= len(behaviour.tokens)
            reason = {"finish_reason": "length" if is_cut else "stop"}
            yield chunk([last | reason], total, fingerprint)
        yield chunk([], total, fingerprint)
        yield "[DONE]"


def chat(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def legacy(index: int, text: str) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": None}


def chunk(choices: list[dict[str, Any]], num_tokens: int, fingerprint: str) -> str:
    usage = {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": num_tokens,
        "total_tokens": PROMPT_TOKENS + num_tokens,
        "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
    }
    return json.dumps(
        {
            "id": "chatcmpl-replica",
            "object": "chat.completion.chunk",
            "created": 1700000000,
            "model": "the-replica's-name",
            "system_fingerprint": fingerprint,
            "choices": choices,
            "usage": usage,
        }
    )
