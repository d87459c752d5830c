"""/load_lora_adapter, /unload_lora_adapter: the control plane's two verbs; and /v1/models."""

import asyncio
from pathlib import Path
from typing import Any

from aiohttp import web

from inference.errors import EngineError, ErrorCode
from inference.request import AdapterInfo
from inference.server.body import read_fields
from inference.server.errors import json_response
from inference.server.fields import invalid
from inference.server.replica import REPLICA, Replica

MAX_NAME_CHARS = 256


async def load_lora_adapter(request: web.Request) -> web.Response:
    replica = request.app[REPLICA]
    loaded = replica.ready()
    body = await read_fields(request)
    body.refuse_others(("lora_name", "lora_path", "pinned"))
    name = _name(body.required_string("lora_name"), replica)
    path = _allowed(Path(body.required_string("lora_path")), replica.adapter_dirs)
    pinned = body.boolean("pinned", False)
    async with replica.adapter_lock:
        # Reads and checks files: beside the event loop, so no stream waits.
        info = await asyncio.to_thread(loaded.engine.load_adapter, name, str(path), pinned)
    return json_response(
        {"success": True, "lora_name": name, "digest": info.digest, "rank": info.rank}
    )


async def unload_lora_adapter(request: web.Request) -> web.Response:
    replica = request.app[REPLICA]
    loaded = replica.ready()
    body = await read_fields(request)
    body.refuse_others(("lora_name",))
    name = body.required_string("lora_name")
    async with replica.adapter_lock:
        try:
            await asyncio.to_thread(loaded.engine.unload_adapter, name)
        except EngineError as error:
            message = f"The adapter '{name[:200]}' is not loaded."
            raise EngineError(error.code, message, "lora_name") from error
    return json_response({"success": True})


def _name(name: str, replica: Replica) -> str:
    if name == replica.base_name:
        raise invalid("lora_name", f"'{name[:200]}' is the base model's name.")
    if len(name) > MAX_NAME_CHARS or not name.isprintable():
        message = f"'lora_name' must be at most {MAX_NAME_CHARS} printable characters."
        raise invalid("lora_name", message)
    return name


def _allowed(path: Path, roots: tuple[Path, ...]) -> Path:
    """The path with every link resolved, so that none leads out of the roots."""
    try:
        real = path.resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise invalid("lora_path", "'lora_path' is not a path.") from error
    if roots and not any(real.is_relative_to(root) for root in roots):
        message = "'lora_path' is outside the folders that --adapter-dir allows."
        raise invalid("lora_path", message)
    if not real.is_dir():
        message = f"'lora_path' is not a folder: {path}"
        raise EngineError(ErrorCode.INVALID_ADAPTER, message, "lora_path")
    return real


async def list_models(request: web.Request) -> web.Response:
    """The base first, then the adapters by name."""
    models = await _models(request)
    return json_response({"object": "list", "data": list(models.values())})


async def retrieve_model(request: web.Request) -> web.Response:
    name = request.match_info["id"]
    model = (await _models(request)).get(name)
    if model is None:
        message = f"The model '{name[:200]}' does not exist."
        raise EngineError(ErrorCode.MODEL_NOT_FOUND, message, "model")
    return json_response(model)


async def _models(request: web.Request) -> dict[str, dict[str, Any]]:
    replica = request.app[REPLICA]
    loaded = replica.ready()
    state = await asyncio.to_thread(loaded.engine.state)
    adapters = sorted(state.adapters, key=lambda info: info.name)
    base = _model(replica, replica.base_name, loaded.max_model_len, None)
    return {replica.base_name: base} | {
        info.name: _model(replica, info.name, loaded.max_model_len, info) for info in adapters
    }


def _model(
    replica: Replica, name: str, max_model_len: int, info: AdapterInfo | None
) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": replica.started_at,
        "owned_by": "grafthouse",
        "parent": None if info is None else replica.base_name,
        "digest": None if info is None else info.digest,
        "max_model_len": max_model_len,
    }
