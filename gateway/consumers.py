"""WebSockets: many chats over one socket; a tenant's events. ARCHITECTURE.md has the frames."""

import asyncio
import logging
import secrets
from contextlib import aclosing
from typing import Any

from gateway import metrics
from gateway.admission import admit, bearer
from gateway.openai.errors import error_object, internal_error
from gateway.openai.http import ClientGone
from gateway.openai.relay import usage_object
from gateway.openai.schema import bad_request, parse_ask, text_field
from gateway.sockets import (
    BAD_FRAME,
    NOT_AUTHENTICATED,
    JsonSocket,
    KeyHolder,
    Unauthenticated,
    principal_of,
)
from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.events import group_name

log = logging.getLogger(__name__)

MAX_GENERATIONS = 16


class ChatConsumer(JsonSocket):
    """Several generations at once, each a task of its own: a full socket holds up its writers,
    nobody else.
    """

    kind = "chat"
    # No layer of this name is configured: a chat needs none, and each would poll the store.
    channel_layer_alias = "none"

    async def connect(self) -> None:
        self._running: dict[str, asyncio.Task[None]] = {}
        # Why the caller has no right to the socket any more.
        self._lost = ""
        await super().connect()
        header = dict(self.scope["headers"]).get(b"authorization")
        if header is None:
            return
        try:
            await self._greet(KeyHolder(bearer(header.decode("latin-1"))))
        except (ApiError, Unauthenticated) as error:
            await self.refuse(NOT_AUTHENTICATED, str(error))

    async def disconnect(self, code: int) -> None:
        await super().disconnect(code)
        self._lost = ""
        for task in self._running.values():
            task.cancel()

    async def take(self, frame: dict[str, Any]) -> None:
        kind = frame.get("type")
        if self.caller is None and kind != "ping":
            await self._authenticate(frame)
        elif kind == "chat":
            await self._begin(text_field(frame, "id"), frame.get("body"))
        elif kind == "cancel":
            # What has just ended by itself cannot be cancelled any more: not an error.
            if task := self._running.get(text_field(frame, "id") or ""):
                task.cancel()
        else:
            await super().take(frame)

    async def _authenticate(self, frame: dict[str, Any]) -> None:
        api_key, tenant = text_field(frame, "api_key"), text_field(frame, "tenant")
        if frame.get("type") != "auth" or (api_key is None) == (tenant is None):
            raise Unauthenticated("the first frame must be of type auth, with api_key or tenant")
        await self._greet(KeyHolder(api_key) if api_key else self.visitor(str(tenant)))

    async def _greet(self, caller: Any) -> None:
        principal = await self.identify(caller)
        await self.write({"type": "ready", "tenant": principal.tenant_slug})

    async def _begin(self, name: str | None, body: object) -> None:
        if name is None:
            raise bad_request("a chat frame needs an id of its own")
        try:
            self._check(name, body)
        except ApiError as error:
            await self._write_error(name, error)
            return
        assert isinstance(body, dict)
        task = asyncio.create_task(self._run(name, body))
        self._running[name] = task
        task.add_done_callback(lambda _: self._running.pop(name, None))

    def _check(self, name: str, body: object) -> None:
        if name in self._running:
            raise ApiError("id_in_use", 409, f"A generation with the id {name!r} is running.")
        if len(self._running) >= MAX_GENERATIONS:
            message = f"At most {MAX_GENERATIONS} generations run on one socket at a time."
            raise ApiError("too_many_generations", 429, message, type="requests")
        if not isinstance(body, dict):
            raise bad_request("body: expected the object of a chat completion", "body")

    async def _run(self, name: str, body: dict[str, Any]) -> None:
        try:
            await self._answer(name, body)
        finally:
            # What was admitted before ends whole; the last one closes the door.
            if self._lost and len(self._running) == 1:
                await self.refuse(NOT_AUTHENTICATED, self._lost)

    async def _answer(self, name: str, body: dict[str, Any]) -> None:
        try:
            await self._generate(name, body)
        except ApiError as error:
            await self._write_error(name, error)
        except asyncio.CancelledError:
            await self._write_error(name, cancelled())
            raise
        except ClientGone:
            log.debug("the client of generation %s has gone", name)
        except Exception:
            log.exception("generation %s on a socket failed", name)
            await self._write_error(name, internal_error())

    async def _current_principal(self) -> Principal:
        assert self.caller is not None
        try:
            return await principal_of(self.runtime, self.caller)
        except ApiError as error:
            self._lost = error.message
            raise

    async def _generate(self, name: str, body: dict[str, Any]) -> None:
        principal = await self._current_principal()
        ask = parse_ask("chat.completions", {**body, "stream": True})
        async with (
            admit(self.runtime, principal, ask, secrets.token_hex(16)) as generation,
            aclosing(generation.chunks()) as chunks,
        ):
            async for chunk in chunks:
                await self.write({"type": "chunk", "id": name, "data": chunk})
        usage = usage_object(generation.relay.tokens)
        metrics.REQUESTS.labels("ws/chat", "2xx").inc()
        await self.write({"type": "done", "id": name, "usage": usage})

    async def _write_error(self, name: str, error: ApiError) -> None:
        metrics.REQUESTS.labels("ws/chat", f"{error.status // 100}xx").inc()
        try:
            await self.write({"type": "error", "id": name, "error": error_object(error)})
        except ClientGone:
            log.debug("the client of generation %s has gone", name)


def cancelled() -> ApiError:
    return ApiError("cancelled", 499, "The generation was cancelled; what it produced is billed.")


class EventsConsumer(JsonSocket):
    """What happens in one tenant, to a signed-in member of it."""

    kind = "events"
    _group = ""

    async def take(self, frame: dict[str, Any]) -> None:
        if frame.get("type") == "ping" and self._group:
            # Membership of a group expires after a day; an open page pings.
            await self.channel_layer.group_add(self._group, self.channel_name)
        if frame.get("type") != "auth":
            await super().take(frame)
            return
        tenant = text_field(frame, "tenant")
        if tenant is None or self._group:
            raise bad_request("the first frame, and no other, is of type auth and names a tenant")
        principal = await self.identify(self.visitor(tenant))
        await self._join(principal)

    async def _join(self, principal: Principal) -> None:
        self._group = group_name(principal.tenant_id)
        await self.channel_layer.group_add(self._group, self.channel_name)
        await self.write({"type": "ready"})

    async def disconnect(self, code: int) -> None:
        await super().disconnect(code)
        if self._group:
            await self.channel_layer.group_discard(self._group, self.channel_name)

    async def tenant_event(self, message: dict[str, Any]) -> None:
        """From tenants.events by the channel layer. A member removed meanwhile gets no more."""
        assert self.caller is not None
        try:
            await principal_of(self.runtime, self.caller)
            await self.write({"type": "event", "event": message["event"], "data": message["data"]})
        except ApiError as error:
            await self.refuse(NOT_AUTHENTICATED, error.message)
        except ClientGone:
            await self.refuse(BAD_FRAME, "gone")
