"""One replica's turn at an admitted request."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from adapters.dialects.dialect import Ability, Dialect
from gateway.admitted import Admission
from gateway.openai.relay import Relay
from gateway.runtime import Runtime
from gateway.upstream import AdapterGone, ReplicaBusy, ReplicaLost, Sender, open_stream
from tenants.errors import ApiError
from tenants.metering import TokenCounts

# Tokens that a plain answer's replica may hold back. Whose client leaves pays for so many less.
PLAIN_STREAM_INTERVAL = 32

Chunk = dict[str, Any]


class Attempt:
    """Its chunks, none before its first token: the role alone is no reason to stay with a replica.

    number: 1, or more after others failed.
    """

    def __init__(
        self, runtime: Runtime, admission: Admission, url: str, body: dict[str, Any], number: int
    ) -> None:
        self._replicas, self._session = runtime.replicas, runtime.session
        self._admission = admission
        self._url = url
        self._dialect = self._replicas.dialect(url)
        asked = asked_of(self._dialect, body, admission.ask.is_stream)
        base, self._digest = self._replicas.base_name(url), admission.resolved.digest
        self._body = self._dialect.request(asked, base, self._digest)
        model = self._body["model"]
        self.relay = Relay(admission.ask, admission.identity(), self._dialect, model)
        # A plain answer is nobody's to pay should this process die: nobody asks for it then.
        name = admission.request_id if admission.ask.is_stream else None
        self._sender = Sender(name, number, admission.principal.weight)
        self._held: list[Chunk] = []
        self._is_bound = self._is_done = False

    async def chunks(self, bind: Callable[[], Awaitable[None]]) -> AsyncGenerator[Chunk, None]:
        """bind() is awaited before the first. Closed early, it aborts the generation there.

        Raises what open_stream and Relay.decode raise; ReplicaLost for a stream without its end.
        """
        where = (self._session, self._url, self._dialect, self._admission.ask.endpoint)
        with self._replicas.using(self._url, self._digest):
            async with open_stream(*where, self._body, self._sender) as payloads:
                async for payload in payloads:
                    for chunk in await self._take(payload, bind):
                        yield chunk
            if not self._is_done:
                raise ReplicaLost(f"{self._url}: closed its stream before [DONE]")
        for chunk in await self._release(bind):
            yield chunk

    async def _take(self, payload: bytes, bind: Callable[[], Awaitable[None]]) -> list[Chunk]:
        if payload == b"[DONE]":
            self._is_done = True
            return []
        chunk = self._decode(payload)
        if chunk is not None:
            self._held.append(chunk)
        if not self.relay.has_token or not self._held:
            return []
        return await self._release(bind)

    async def _release(self, bind: Callable[[], Awaitable[None]]) -> list[Chunk]:
        if not self._is_bound:
            self._replicas.answered(self._url)
            await bind()
            self._is_bound = True
        held, self._held = self._held, []
        return held

    def _decode(self, payload: bytes) -> Chunk | None:
        try:
            return self.relay.for_client(self.relay.decode(payload))
        except ApiError as error:
            # Of a stream its client has a part by then.
            is_late = self._is_bound and self._admission.ask.is_stream
            refusal = None if is_late else passing(error)
            if refusal is None:
                raise
            raise refusal from error

    @property
    def produced(self) -> TokenCounts | None:
        """Before the first token it is unknown, not zero."""
        if not self.relay.has_token:
            return None
        tokens = self.relay.tokens
        return TokenCounts(tokens.prompt, tokens.cached, tokens.completion)


def asked_of(dialect: Dialect, body: dict[str, Any], is_stream: bool) -> dict[str, Any]:
    """Of a plain answer nobody reads each token: fewer frames, and a count now and then."""
    if is_stream or Ability.STREAM_INTERVAL not in dialect.abilities:
        return body
    interval = {"stream_interval": PLAIN_STREAM_INTERVAL}
    return body | {"stream_options": body["stream_options"] | interval}


def passing(error: ApiError) -> ReplicaBusy | None:
    """Of the errors inside a stream, what is this replica's and of this moment."""
    # A replica that stops says so inside its streams.
    if error.code == "overloaded":
        return ReplicaBusy(error.message)
    # Some engines open the stream before they look for the adapter.
    if error.code == "model_not_found":
        return AdapterGone(error.message)
    return None
