"""/v1 as a raw ASGI application, ahead of Django and its middleware: routes, and the two ways to
answer.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from django.utils import timezone

from adapters.access import servable_models
from gateway import metrics
from gateway.admission import (
    admit,
    authenticate,
    bearer,
    resolve_model,
)
from gateway.database import in_thread
from gateway.generation import Generation
from gateway.openai.errors import internal_error, unavailable
from gateway.openai.event_stream import EventStream
from gateway.openai.http import ClientGone, Receive, Request, Scope, Send
from gateway.openai.relay import sse
from gateway.openai.schema import Ask, Endpoint, parse_ask, parse_json
from gateway.openai.usage import READER, parse_usage, usage_page
from gateway.runtime import Runtime, runtime_of
from tenants.auth import Principal, require_scope
from tenants.errors import ApiError
from tenants.models import KeyScope

log = logging.getLogger(__name__)

STOPPING = "This server stops before your answer is there. Nothing is billed. Try again shortly."

Handler = Callable[[Runtime, Request], Awaitable[None]]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    runtime, request = runtime_of(scope), Request(scope, receive, send)
    try:
        await route(runtime, request)
    except ClientGone:
        request.status = 499
    except asyncio.CancelledError:
        # The server stops, and waits no longer.
        if not request.status:
            await request.answer_error(unavailable("server_stopping", STOPPING))
        raise
    except ApiError as error:
        await request.answer_error(error)
    except Exception:
        log.exception("%s %s %s", request.request_id, request.method, request.path)
        if request.status:
            raise
        await request.answer_error(internal_error())
    finally:
        observe(runtime, request)


def observe(runtime: Runtime, request: Request) -> None:
    status = f"{request.status // 100}xx"
    metrics.REQUESTS.labels(request.route, status).inc()
    metrics.DURATION.labels(request.route).observe(time.monotonic() - request.received_at)
    runtime.access_log.write(request.visit, request.route, request.status)


async def route(runtime: Runtime, request: Request) -> None:
    """Exact paths, with or without a trailing slash; never a redirect, which would lose a POST's
    body.
    """
    request.route, handlers = find(request.path)
    if not handlers:
        hint = " The base URL of this API ends with /v1." if request.path in WITHOUT_V1 else ""
        message = f"Unknown path: {request.method} {request.path[:200]}.{hint}"
        raise ApiError("not_found", 404, message)
    allow = ", ".join([*handlers, *(["HEAD"] if "GET" in handlers else []), "OPTIONS"])
    if request.method == "OPTIONS":
        await request.answer_options(allow)
        return
    handler = handlers.get("GET" if request.method == "HEAD" else request.method)
    if handler is None:
        message = f"{request.method[:20]} is not allowed here; use {allow}."
        raise ApiError("method_not_allowed", 405, message, headers={"allow": allow})
    await handler(runtime, request)


def find(path: str) -> tuple[str, dict[str, Handler]]:
    if path in ROUTES:
        return path.removeprefix("/v1/"), ROUTES[path]
    for prefix, (name, handlers) in PREFIXES.items():
        if path.startswith(prefix):
            return name, handlers
    return "other", {}


async def principal_of(runtime: Runtime, request: Request) -> Principal:
    caller = await authenticate(runtime, bearer(request.headers.get("authorization")))
    request.visit.principal = caller
    return caller


async def list_models(runtime: Runtime, request: Request) -> None:
    principal = await principal_of(runtime, request)
    require_scope(principal, KeyScope.INFERENCE)
    models = await in_thread(lambda: servable_models(principal))
    data = [model_object(one.id, one.created, one.owned_by) for one in models]
    await request.answer_json({"object": "list", "data": data})


async def retrieve_model(runtime: Runtime, request: Request) -> None:
    principal = await principal_of(runtime, request)
    require_scope(principal, KeyScope.INFERENCE)
    name = request.path.removeprefix("/v1/models/")
    resolved = await resolve_model(runtime, principal, name)
    models = await in_thread(lambda: servable_models(principal))
    # A pinned name ("bot@3") is not listed; it is described by its adapter.
    by_name = {one.id: one for one in models}
    found = by_name.get(name) or by_name.get(resolved.adapter or "")
    created = found.created if found else 0
    owner = found.owned_by if found else principal.tenant_slug
    await request.answer_json(model_object(name, created, owner))


def model_object(name: str, created: int, owner: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": owner}


async def usage(runtime: Runtime, request: Request) -> None:
    principal = await principal_of(runtime, request)
    require_scope(principal, KeyScope.USAGE)
    ask = parse_usage(request.query, timezone.now())
    page = await in_thread(lambda: usage_page(principal.tenant_id, ask), pool=READER)
    await request.answer_json(page)


async def chat_completions(runtime: Runtime, request: Request) -> None:
    await complete(runtime, request, "chat.completions")


async def completions(runtime: Runtime, request: Request) -> None:
    await complete(runtime, request, "completions")


async def complete(runtime: Runtime, request: Request, endpoint: Endpoint) -> None:
    principal = await principal_of(runtime, request)
    with runtime.bodies.held() as held:
        ask = parse_ask(endpoint, parse_json(await request.read_body(held)))
        request.visit.model = ask.model
        answer = stream if ask.is_stream else whole
        with runtime.slot():
            await until_gone(request, answer(runtime, request, principal, ask))


async def until_gone(request: Request, work: Awaitable[None]) -> None:
    """The work, cancelled when the client closes its connection: that aborts the generation on the
    replica.
    """
    task = asyncio.current_task()
    assert task is not None
    leaving = asyncio.create_task(leave(request, task))
    try:
        await work
    except asyncio.CancelledError:
        if request.has_left and not task.uncancel():
            raise ClientGone from None
        raise
    finally:
        leaving.cancel()


async def leave(request: Request, task: "asyncio.Task[Any]") -> None:
    await request.disconnected()
    request.has_left = True
    task.cancel()


async def whole(runtime: Runtime, request: Request, principal: Principal, ask: Ask) -> None:
    async with admit(runtime, principal, ask, request.request_id) as generation:
        request.visit.generation = generation
        request.answer_headers |= generation.headers
        with failed_if_we_stop(request, generation):
            answer = await generation.whole()
        observe_first_token(request, generation)
    await request.answer_json(answer)


@contextmanager
def failed_if_we_stop(request: Request, generation: Generation) -> Iterator[None]:
    """A client that left has cancelled its request; where one waits on, it is we who end it."""
    try:
        yield
    except asyncio.CancelledError:
        if not request.has_left:
            generation.fail("server_stopping")
        raise


async def stream(runtime: Runtime, request: Request, principal: Principal, ask: Ask) -> None:
    answer = EventStream(request)
    async with answer.ended():
        async with admit(runtime, principal, ask, request.request_id) as generation:
            request.visit.generation = generation
            request.answer_headers |= generation.headers
            answer.is_admitted = True
            with failed_if_we_stop(request, generation):
                async with aclosing(generation.chunks()) as chunks:
                    async for chunk in chunks:
                        await answer.write(sse(chunk))
            observe_first_token(request, generation)
        if ask.include_usage:
            await answer.write(sse(generation.relay.usage_chunk()))


def observe_first_token(request: Request, generation: Generation) -> None:
    if generation.first_token_at is not None:
        seconds = generation.first_token_at - request.received_at
        metrics.FIRST_TOKEN.labels(request.route).observe(seconds)


ROUTES: dict[str, dict[str, Handler]] = {
    "/v1/models": {"GET": list_models},
    "/v1/chat/completions": {"POST": chat_completions},
    "/v1/completions": {"POST": completions},
    "/v1/usage": {"GET": usage},
    # Where the official client asks for it.
    "/v1/organization/usage/completions": {"GET": usage},
}
# Asked for by clients whose base URL lacks it. Django's pages would tell them nothing.
WITHOUT_V1 = {"/models", "/chat/completions", "/completions", "/responses", "/embeddings"}
# Names may hold a slash or an @, and come percent-encoded: the path is decoded already.
PREFIXES: dict[str, tuple[str, dict[str, Handler]]] = {
    "/v1/models/": ("models/{id}", {"GET": retrieve_model}),
}
