"""vLLM and SGLang as their servers answer, on real sockets, without models behind them.

Routes, statuses, texts and error shapes are those of vLLM 0.26 (vllm/entrypoints/openai/models and
serve/lora) and SGLang 0.5.17 (srt/entrypoints/http_server.py, srt/managers). Tests set what fails.
"""

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from aiohttp import web

from tests.services import free_port

BASE = "meta-llama/Llama-3.1-8B"
MAX_MODEL_LEN = 512
TOKENS = ("Hello", " world", "!")
Ending = Literal["fails", "dies"]


@dataclass
class FakePeer(ABC):
    """adapters: name → folder. impostor: what the next answers name as `model` instead. ends_after:
    tokens before its stream ends by `ending`; too_long: the next prompt is.
    """

    port: int = field(default_factory=free_port)
    adapters: dict[str, str] = field(default_factory=dict)
    loads: list[dict[str, Any]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    impostor: str = ""
    is_dead: bool = False
    ending: Ending | None = None
    ends_after: int = 2
    token_interval_s: float = 0.0
    too_long: bool = False
    num_running: int = 0

    def behave(self) -> None:
        """As it is when all is well."""
        self.impostor, self.ending = "", None
        self.token_interval_s, self.too_long = 0.0, False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self.is_dead else 200)

    async def models(self, request: web.Request) -> web.Response:
        cards = [card(BASE, BASE, None, MAX_MODEL_LEN)]
        cards += [card(name, root, BASE, None) for name, root in self.adapters.items()]
        return web.json_response({"object": "list", "data": cards})

    @abstractmethod
    def served(self, asked: str) -> str | web.Response:
        """What answers as `model`, or the refusal."""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        served = self.served(body["model"])
        if isinstance(served, web.Response):
            return served
        if self.too_long:
            return self.refuse_length()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        self.num_running += 1
        try:
            await self.stream(request, response, self.impostor or served)
        finally:
            self.num_running -= 1
        return response

    async def stream(self, request: web.Request, response: web.StreamResponse, model: str) -> None:
        """Tokens by themselves last as long as they are read; the role comes before them."""
        number = 0
        async for frame in frames(model):
            if self.ending and number == 1 + self.ends_after:
                await self.end(request, response)
                return
            await response.write(f"data: {frame}\n\n".encode())
            await asyncio.sleep(self.token_interval_s)
            number += 1

    async def end(self, request: web.Request, response: web.StreamResponse) -> None:
        if self.ending == "dies":
            assert request.transport is not None
            request.transport.abort()
            return
        for payload in (json.dumps({"error": self.failure()}), "[DONE]"):
            await response.write(f"data: {payload}\n\n".encode())

    @abstractmethod
    def failure(self) -> dict[str, Any]:
        """What an error frame of its streams holds."""

    @abstractmethod
    def refuse_length(self) -> web.Response:
        """Its words for a prompt that does not fit."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self.health),
            web.get("/v1/models", self.models),
            web.post("/v1/chat/completions", self.chat),
        ]


async def frames(model: str) -> AsyncIterator[str]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": int(time.time())}
    deltas = [{"role": "assistant", "content": ""}, *({"content": text} for text in TOKENS), {}]
    for number, delta in enumerate(deltas):
        is_last = number == len(deltas) - 1
        choice = {"index": 0, "delta": delta, "logprobs": None, "token_ids": None}
        choice |= {"finish_reason": "stop" if is_last else None}
        used = min(number, len(TOKENS))
        yield json.dumps({**head, "model": model, "choices": [choice], "usage": usage(used)})
    yield json.dumps({**head, "model": model, "choices": [], "usage": usage(len(TOKENS))})
    yield "[DONE]"


def usage(completion: int) -> dict[str, Any]:
    counts = {"prompt_tokens": 7, "completion_tokens": completion, "total_tokens": 7 + completion}
    return counts | {"prompt_tokens_details": None}


def card(name: str, root: str, parent: str | None, max_len: int | None) -> dict[str, Any]:
    shape = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "x"}
    return shape | {"root": root, "parent": parent, "max_model_len": max_len}


@dataclass
class FakeVllm(FakePeer):
    """allows_updates: VLLM_ALLOW_RUNTIME_LORA_UPDATING; without it there are no such routes."""

    allows_updates: bool = True
    max_lora_rank: int = 64

    def served(self, asked: str) -> str | web.Response:
        if asked == BASE or asked in self.adapters:
            return asked
        return self.error(404, "NotFoundError", f"The model `{asked}` does not exist.", "model")

    def failure(self) -> dict[str, Any]:
        error = {"message": "EngineCore died", "type": "InternalServerError"}
        return error | {"param": None, "code": 500}

    def refuse_length(self) -> web.Response:
        message = (
            f"This model's maximum context length is {MAX_MODEL_LEN} tokens. However, your request "
            "has 900 input tokens. Please reduce the length of the input messages."
        )
        return self.error(400, "BadRequestError", message, "input_tokens")

    @staticmethod
    def error(status: int, kind: str, message: str, param: str | None = None) -> web.Response:
        error = {"message": message, "type": kind, "param": param, "code": status}
        return web.json_response({"error": error}, status=status)

    async def load(self, request: web.Request) -> web.Response:
        if not self.allows_updates:
            return web.json_response({"detail": "Not Found"}, status=404)
        body = await request.json()
        self.loads.append(body)
        name, path = body["lora_name"], Path(body["lora_path"])
        if name in self.adapters and not body.get("load_inplace"):
            return self.error(
                400,
                "InvalidUserInput",
                f"The lora adapter '{name}' has already been loaded. If you want to load the "
                "adapter in place, set 'load_inplace' to True.",
            )
        if not (path / "adapter_config.json").is_file():
            return self.error(404, "NotFoundError", f"No adapter found for {name} at {path}")
        rank = json.loads((path / "adapter_config.json").read_text())["r"]
        if rank > self.max_lora_rank:
            message = f"LoRA rank {rank} is greater than max_lora_rank {self.max_lora_rank}."
            return self.error(400, "BadRequestError", message)
        self.adapters[name] = str(path)
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        if self.adapters.pop(name, None) is None:
            message = f"The lora adapter '{name}' cannot be found."
            return self.error(404, "NotFoundError", message)
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    def routes(self) -> list[web.RouteDef]:
        paths = {"/v1/load_lora_adapter": self.load, "/v1/unload_lora_adapter": self.unload}
        return [*super().routes(), *(web.post(path, one) for path, one in paths.items())]


@dataclass
class FakeSglang(FakePeer):
    """max_loaded_loras: beyond it the least recently loaded one goes at once."""

    enable_lora: bool = True
    max_loaded_loras: int | None = None

    def served(self, asked: str) -> str | web.Response:
        """Any base's name is taken; what follows the colon must once have been loaded."""
        _, colon, adapter = asked.partition(":")
        if colon and adapter not in self.adapters:
            message = (
                f"Got LoRA adapter that has never been loaded: {adapter}\n"
                f"All loaded adapters: dict_keys({list(self.adapters)})."
            )
            flat = {"object": "error", "message": message, "type": "BadRequest"}
            return web.json_response(flat | {"param": None, "code": 400}, status=400)
        return asked

    def failure(self) -> dict[str, Any]:
        error = {"object": "error", "message": "Detokenizer died", "type": "InternalServerError"}
        return error | {"param": None, "code": 500}

    def refuse_length(self) -> web.Response:
        message = (
            "The input (900 tokens) is longer than the model's context length "
            f"({MAX_MODEL_LEN} tokens)."
        )
        flat = {"object": "error", "message": message, "type": "BadRequest"}
        return web.json_response(flat | {"param": None, "code": 400}, status=400)

    def result(self, error: str | None = None) -> web.Response:
        body = {"rid": None, "http_worker_ipc": None, "success": error is None}
        body |= {"error_message": error, "loaded_adapters": dict(self.adapters)}
        return web.json_response(body, status=200 if error is None else 400)

    async def load(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.loads.append(body)
        name, path = body["lora_name"], Path(body["lora_path"])
        if not self.enable_lora:
            return self.result("LoRA is not enabled. Please set `--enable-lora` to enable LoRA.")
        if name in self.adapters:
            return self.result(f"Failed to load LoRA adapter {name} because it is already loaded")
        if not (path / "adapter_config.json").is_file():
            return self.result(f"Can't find 'adapter_config.json' at '{path}'")
        self.adapters[name] = str(path)
        while self.max_loaded_loras is not None and len(self.adapters) > self.max_loaded_loras:
            self.adapters.pop(next(iter(self.adapters)))
        return self.result()

    async def unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        if self.adapters.pop(name, None) is None:
            return self.result(f"LoRA with name {name} does not exist. Loaded LoRAs: dict_keys([])")
        return self.result()

    def routes(self) -> list[web.RouteDef]:
        paths = {"/load_lora_adapter": self.load, "/unload_lora_adapter": self.unload}
        return [*super().routes(), *(web.post(path, one) for path, one in paths.items())]
