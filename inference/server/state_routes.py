"""/health, /ready, /state, /usage, /tokenize, /metrics: what the house and its operators ask."""

import asyncio
from dataclasses import asdict

from aiohttp import web

from inference.metrics import CONTENT_TYPE
from inference.server.body import read_fields
from inference.server.errors import json_response
from inference.server.fields import Fields, invalid
from inference.server.messages import parse_messages
from inference.server.prompts import encode_chat, encode_prompts
from inference.server.replica import REPLICA, Loaded, resolve
from inference.server.requests import parse_target
from inference.server.tools import parse_tools

TOKENIZE_FIELDS = (
    *("model", "lora_path", "prompt"),
    *("messages", "tools", "tool_choice", "add_generation_prompt"),
)

MAX_REQUEST_IDS = 1000


async def health(request: web.Request) -> web.Response:
    """200 while the process lives, also while the model loads."""
    return json_response({"status": "ok"})


async def ready(request: web.Request) -> web.Response:
    request.app[REPLICA].ready()
    return json_response({"status": "ready"})


async def state(request: web.Request) -> web.Response:
    """EngineState; model is the name under which the base is served."""
    replica = request.app[REPLICA]
    found = await asyncio.to_thread(replica.ready().engine.state)
    return json_response(asdict(found) | {"model": replica.base_name})


async def metrics(request: web.Request) -> web.Response:
    body = await asyncio.to_thread(request.app[REPLICA].metrics.render)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


async def tokenize(request: web.Request) -> web.Response:
    """The ids that a prompt or a chat would feed to the engine."""
    replica = request.app[REPLICA]
    loaded = replica.ready()
    body = await read_fields(request)
    body.refuse_others(TOKENIZE_FIELDS)
    resolve(parse_target(body), replica, loaded.engine)
    ids = await _ids(body, loaded)
    limits = {"count": len(ids), "max_model_len": loaded.max_model_len}
    return json_response({"tokens": list(ids)} | limits)


async def usage(request: web.Request) -> web.Response:
    """What this replica knows of requests by their senders' ids; also while the model loads."""
    body = await read_fields(request)
    body.refuse_others(("request_ids",))
    ids = body.array("request_ids")
    if ids is None or not all(isinstance(one, str) for one in ids):
        raise invalid("request_ids", "'request_ids' must be an array of strings.")
    if len(ids) > MAX_REQUEST_IDS:
        message = f"'request_ids' has {len(ids)} entries; at most {MAX_REQUEST_IDS}."
        raise invalid("request_ids", message)
    records = request.app[REPLICA].usage_log.find(ids)
    return json_response({"records": [asdict(record) for record in records]})


async def _ids(body: Fields, loaded: Loaded) -> tuple[int, ...]:
    prompt = body.string("prompt", None)
    if (prompt is None) == (body.get("messages") is None):
        raise invalid("prompt", "Send either 'prompt' (a string) or 'messages'.")
    if prompt is None:
        ends_open = body.boolean("add_generation_prompt", True)
        tools = parse_tools(body).shown
        return await encode_chat(loaded.folder, parse_messages(body), tools, ends_open)
    return (await encode_prompts(loaded.folder.tokenizer, (prompt,)))[0]
