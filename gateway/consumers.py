"""/ws/v1/chat: many generations over one socket. docs/sockets.md has the frames."""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any

from django.conf import settings

from gateway import metrics
from gateway.access_log import Visit
from gateway.admission import admit, bearer
from gateway.openai.errors import error_object, internal_error
from gateway.openai.http import ClientGone
from gateway.openai.relay import usage_object
from gateway.openai.schema import bad_request, bool_field, int_field, parse_ask, text_field
from gateway.readers import Reader, frames_of, owner_of
from gateway.runtime import Runtime
from gateway.sockets import (
    NOT_AUTHENTICATED,
    JsonSocket,
    KeyHolder,
    Unauthenticated,
    principal_of,
)
from gateway.tapes import Tape, as_text, cancelled
from tenants.auth import Principal
from tenants.errors import ApiError

log = logging.getLogger(__name__)

Work = Callable[[], Awaitable[None]]


class ChatConsumer(JsonSocket):
    """Several generations at once, each a task of its own: a full socket holds up its writers,
    nobody else.
    """

    kind = "chat"
    # No layer of this name is configured: a chat needs none, and each would poll the store.
    channel_layer_alias = "none"

    async def connect(self) -> None:
        self._running: dict[str, asyncio.Task[None]] = {}
        self._readers: dict[str, Reader] = {}
        # What is being looked for; who cancels it takes it out, and it ends once it is found.
        self._sought: set[str] = set()
        # Why the caller has no right to the socket any more.
        self._lost = ""
        await super().connect()
        header = dict(self.scope["headers"]).get(b"authorization")
        if header is not None:
            await self.attempt(self._greet_holder(header.decode("latin-1")))

    async def _greet_holder(self, header: str) -> None:
        try:
            holder = KeyHolder(bearer(header))
        except ApiError as error:
            raise Unauthenticated(error.message) from error
        await self._greet(holder)

    async def disconnect(self, code: int) -> None:
        await super().disconnect(code)
        self._lost = ""
        if self.is_goodbye:
            for reader in self._readers.values():
                reader.cancel()
        for task in self._running.values():
            task.cancel()

    def is_busy(self) -> bool:
        return bool(self._running)

    async def take(self, frame: dict[str, Any]) -> None:
        kind = frame.get("type")
        if self.caller is None and kind != "ping":
            await self._authenticate(frame)
        elif kind in {"chat", "resume"}:
            await self._begin(frame)
        elif kind == "cancel":
            self._cancel(text_field(frame, "id") or "")
        else:
            await super().take(frame)

    def _cancel(self, name: str) -> None:
        # What has just ended by itself cannot be cancelled any more: not an error.
        if reader := self._readers.get(name):
            reader.cancel()
        elif name in self._sought:
            self._sought.discard(name)
        elif task := self._running.get(name):
            task.cancel()

    async def _authenticate(self, frame: dict[str, Any]) -> None:
        api_key, tenant = text_field(frame, "api_key"), text_field(frame, "tenant")
        if frame.get("type") != "auth" or (api_key is None) == (tenant is None):
            raise Unauthenticated("the first frame must be of type auth, with api_key or tenant")
        await self._greet(KeyHolder(api_key) if api_key else self.visitor(str(tenant)))

    async def _greet(self, caller: Any) -> None:
        principal = await self.identify(caller)
        await self.write({"type": "ready", "tenant": principal.tenant_slug})

    async def _begin(self, frame: dict[str, Any]) -> None:
        name = text_field(frame, "id")
        if name is None:
            raise bad_request(f"a {frame['type']} frame needs an id of its own")
        try:
            self._check(name)
        except ApiError as error:
            await self._write_error(name, error)
            return
        work = self._chat if frame["type"] == "chat" else self._resumed
        task = asyncio.create_task(self._run(name, partial(work, name, frame)))
        self._running[name] = task
        task.add_done_callback(lambda _: self._running.pop(name, None))

    def _check(self, name: str) -> None:
        if name in self._running:
            raise ApiError("id_in_use", 409, f"A generation with the id {name!r} is running.")
        limit = settings.MAX_GENERATIONS_PER_SOCKET
        if len(self._running) >= limit:
            message = f"At most {limit} generations run on one socket at a time."
            raise ApiError("too_many_generations", 429, message, type="requests")

    async def _run(self, name: str, work: Work) -> None:
        try:
            await self._answer(name, work)
        finally:
            # What was admitted before ends whole; the last one closes the door.
            if self._lost and len(self._running) == 1:
                await self.refuse(NOT_AUTHENTICATED, self._lost)

    async def _answer(self, name: str, work: Work) -> None:
        try:
            await work()
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

    async def _chat(self, name: str, frame: dict[str, Any]) -> None:
        body, is_resumable = frame.get("body"), bool_field(frame, "resumable")
        if not isinstance(body, dict):
            raise bad_request("body: expected the object of a chat completion", "body")
        principal = await self._current_principal()
        tape = self.runtime.tapes.make(owner_of(principal), is_resumable)
        reader = tape.attach(0)
        tape.start(generate(self.runtime, principal, body, tape))
        await self._relay(name, reader, 0, "started")

    async def _resumed(self, name: str, frame: dict[str, Any]) -> None:
        generation, after = text_field(frame, "generation"), int_field(frame, "after", 0)
        if generation is None or after is None:
            raise bad_request("resume: expected generation, and after: the last seq that arrived")
        self._sought.add(name)
        try:
            owner = owner_of(await self._current_principal())
            reader = await self.runtime.far_tapes.attach(owner, generation, after)
            if name not in self._sought:
                reader.cancel()
        finally:
            self._sought.discard(name)
        await self._relay(name, reader, after, "resumed")

    async def _relay(self, name: str, reader: Reader, after: int, first: str) -> None:
        """A tape's frames to this socket. Left early, the tape waits to be resumed."""
        self._readers[name] = reader
        try:
            if reader.is_resumable:
                await self.write({"type": first, "id": name, "generation": reader.name})
            async for frame in frames_of(reader, after):
                await self.write_text(as_text(name, frame))
        finally:
            self._readers.pop(name, None)
            reader.leave()

    async def _write_error(self, name: str, error: ApiError) -> None:
        if self.is_gone:
            return
        try:
            await self.write({"type": "error", "id": name, "error": error_object(error)})
        except ClientGone:
            log.debug("the client of generation %s has gone", name)


async def generate(
    runtime: Runtime, principal: Principal, body: dict[str, Any], tape: Tape
) -> None:
    """One chat completion onto its tape. What it raises is the tape's last frame."""
    visit = Visit(secrets.token_hex(16), time.monotonic(), principal)
    with observed(runtime, visit), runtime.slot(), runtime.bodies.held() as held:
        ask = parse_ask("chat.completions", {**body, "stream": True})
        visit.model = ask.model
        # Its frame's bytes, nearly.
        held.grow_to(ask.num_prompt_tokens_bound)
        async with (
            admit(runtime, principal, ask, visit.request_id) as generation,
            aclosing(generation.chunks()) as chunks,
        ):
            visit.generation = generation
            async for chunk in chunks:
                await tape.write("chunk", "data", chunk)
    tape.end("done", "usage", usage_object(generation.relay.tokens))


@contextmanager
def observed(runtime: Runtime, visit: Visit) -> Iterator[None]:
    # As of one whose client has gone, or took it back.
    status = 499
    try:
        yield
        status = 200
    except ApiError as error:
        status, visit.error_code = error.status, error.code
        raise
    except Exception as error:
        status = 499 if isinstance(error, ClientGone) else 500
        raise
    finally:
        metrics.REQUESTS.labels("ws/chat", f"{status // 100}xx").inc()
        runtime.access_log.write(visit, "ws/chat", status)
