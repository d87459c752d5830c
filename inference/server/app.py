"""The aiohttp application: routes, and what wraps every request."""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Handler

from inference.server import adapter_routes, openai_routes, state_routes
from inference.server.attempt import REQUEST_ID, read_id
from inference.server.body import MAX_BODY_BYTES
from inference.server.errors import OUTCOME, render_errors
from inference.server.replica import REPLICA, Replica

POSTS: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
    "/v1/chat/completions": openai_routes.chat_completions,
    "/v1/completions": openai_routes.completions,
    "/load_lora_adapter": adapter_routes.load_lora_adapter,
    "/v1/load_lora_adapter": adapter_routes.load_lora_adapter,
    "/unload_lora_adapter": adapter_routes.unload_lora_adapter,
    "/v1/unload_lora_adapter": adapter_routes.unload_lora_adapter,
    "/tokenize": state_routes.tokenize,
    "/usage": state_routes.usage,
}
GETS: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
    "/v1/models": adapter_routes.list_models,
    # Names may have slashes.
    "/v1/models/{id:.+}": adapter_routes.retrieve_model,
    "/health": state_routes.health,
    "/ready": state_routes.ready,
    "/state": state_routes.state,
    "/metrics": state_routes.metrics,
}


def make_app(replica: Replica) -> web.Application:
    app = web.Application(
        client_max_size=MAX_BODY_BYTES, middlewares=[count_requests, render_errors]
    )
    app[REPLICA] = replica
    for path, handler in POSTS.items():
        app.router.add_post(path, handler)
    for path, handler in GETS.items():
        app.router.add_get(path, handler)
    app.on_response_prepare.append(_echo_request_id)
    app.on_cleanup.append(_close_templates)
    return app


async def _close_templates(app: web.Application) -> None:
    await app[REPLICA].templates.close()


async def _echo_request_id(request: web.Request, response: web.StreamResponse) -> None:
    request_id = read_id(request)
    if request_id is not None:
        response.headers[REQUEST_ID] = request_id


@web.middleware
async def count_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every request counts once. Labels are our own route patterns, never a client's path."""
    resource = request.match_info.route.resource
    route = resource.canonical if resource is not None else "unknown"
    outcome = "server_error"
    try:
        response = await handler(request)
        outcome = request.get(OUTCOME) or _outcome(response.status)
        return response
    except asyncio.CancelledError:
        outcome = "disconnected"
        raise
    finally:
        request.app[REPLICA].metrics.requests.labels(route, outcome).inc()


def _outcome(status: int) -> str:
    if status < 400:
        return "ok"
    return "client_error" if status < 500 else "server_error"
