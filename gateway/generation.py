"""One admitted request: its stream from a replica, and its settlement, exactly once, whatever ended
it.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from django.db import DatabaseError

from adapters.access import Resolved
from adapters.dialects.dialect import Ability
from gateway import metrics
from gateway.openai.errors import internal_error, unavailable
from gateway.openai.profile import as_sent
from gateway.openai.relay import BrokenStream, DigestMismatch, Identity, Relay
from gateway.openai.schema import Ask
from gateway.prefix import prefix_key
from gateway.runtime import Runtime
from gateway.upstream import AdapterGone, ReplicaBusy, ReplicaLost, open_stream
from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.metering import TokenCounts, UsageEnd, UsageStart
from tenants.prices import PriceBook
from tenants.quota import Reservation

log = logging.getLogger(__name__)

# Replicas tried for one request before its first token.
MAX_ATTEMPTS = 3
# A version that just became active may not be in the last poll's report yet.
MAX_RESIDENCY_WAIT_S = 1.0

Status = Literal["finished", "cancelled", "failed"]


@dataclass(frozen=True)
class Admission:
    """What was decided before a replica is chosen. max_tokens: per sequence, as sent upstream."""

    request_id: str
    principal: Principal
    ask: Ask
    resolved: Resolved
    prices: PriceBook
    reservation: Reservation
    max_tokens: int
    started_at: datetime

    def identity(self) -> Identity:
        """The answer names the version that served, also to who asked for the active one."""
        resolved = self.resolved
        is_version = resolved.adapter is not None and resolved.version is not None
        name = f"{resolved.adapter}@{resolved.version}" if is_version else resolved.public_name
        return Identity(self.request_id, name, resolved.digest or "base")

    def usage_start(self, replica: str) -> UsageStart:
        principal, resolved = self.principal, self.resolved
        return UsageStart(
            request_id=self.request_id,
            tenant_id=principal.tenant_id,
            endpoint=self.ask.endpoint,
            model=self.identity().model,
            key_id=principal.key_id,
            user_id=principal.user_id,
            adapter=resolved.adapter or "",
            version=resolved.version,
            digest=resolved.digest or "",
            replica=replica,
            prices=self.prices,
            started_at=self.started_at,
        )

    def upstream_body(self) -> dict[str, Any]:
        body = {name: value for name, value in self.ask.body.items() if value is not None}
        body.pop("max_completion_tokens", None)
        return body | {
            "cache_salt": self.principal.cache_salt,
            "max_tokens": self.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }


class Generation:
    """The request on its way.

    Read chunks() once; settle() is called once, by admission, at the end.
    """

    def __init__(self, runtime: Runtime, admission: Admission) -> None:
        self.admission = admission
        self.relay = Relay(admission.ask, admission.identity())
        self.first_token_at: float | None = None
        # Until the stream has ended by itself, to leave it is to cancel it.
        self.status: Status = "cancelled"
        self.error_code = ""
        self._runtime = runtime
        self._body = admission.upstream_body()
        self._prefix = prefix_key(admission.principal.cache_salt, self._body)
        self._replica = ""
        self._start: UsageStart | None = None
        self._opened: asyncio.Future[None] | None = None
        self._is_committed = False
        metrics.OPEN_STREAMS.inc()

    async def route(self) -> None:
        """Wait for a replica that can serve this digest; ApiError 503 when none can."""
        deadline = time.monotonic() + MAX_RESIDENCY_WAIT_S
        while not (urls := self._order()):
            if time.monotonic() > deadline:
                raise self._unavailable()
            # Also when none takes work: one that lost a stream a moment ago may live.
            await self._runtime.replicas.refresh()
            if not self._runtime.replicas.is_any_taking():
                raise self._unavailable()
        self._replica = urls[0]

    def _residents(self) -> list[str]:
        return self._runtime.replicas.order(self.admission.resolved.digest, self._prefix)

    def _order(self) -> list[str]:
        if "chat_template" not in self._body:
            return self._residents()
        # Elsewhere the base's own would be used: another prompt than was asked for.
        dialect = self._runtime.replicas.dialect
        return [url for url in self._residents() if Ability.CHAT_TEMPLATE in dialect(url).abilities]

    def _next(self, tried: list[str]) -> str | None:
        """The best replica not tried yet, by what is known now."""
        if len(tried) == MAX_ATTEMPTS:
            return None
        return next((url for url in self._order() if url not in tried), None)

    def _unavailable(self, is_busy: bool = False, is_lost: bool = False) -> ApiError:
        # One that was lost may be back by now: that is not what ended this request.
        if not self._runtime.replicas.is_any_taking() or (is_lost and not is_busy):
            return unavailable("no_replica", "No inference replica is ready. Try again shortly.", 2)
        if is_busy or self.admission.resolved.digest is None:
            return unavailable("overloaded", "Every inference replica is busy. Try again shortly.")
        name = self.admission.resolved.public_name
        if self._residents() and not self._order():
            message = f"{name} has its own chat template, which no replica that holds it applies."
            return unavailable("chat_template_unavailable", message)
        message = f"{name} is being loaded by the inference replicas. Try again shortly."
        return unavailable("adapter_loading", message)

    def open(self) -> None:
        """Begin to write the usage row; the first chunk waits for it, so the replica's prefill
        hides the write.
        """
        self._start = self.admission.usage_start(self._replica)
        self._opened = self._runtime.writer.open(self._start, self._counts)

    async def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        """The client's chunks.

        A replica lost before the first of them is replaced unseen; later it is an error.
        """
        tried: list[str] = []
        is_busy, is_lost, mismatch = False, False, None
        while (url := self._next(tried)) is not None:
            tried.append(url)
            try:
                async with aclosing(self._attempt(url)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                self.status = "finished"
                return
            except ReplicaBusy as error:
                is_busy = is_busy or not isinstance(error, AdapterGone)
                log.info("%s: %s", self.admission.request_id, error)
            except (ReplicaLost, BrokenStream) as error:
                self._lost(error)
                is_lost = True
            except DigestMismatch as error:
                metrics.MISMATCHES.inc()
                log.error("%s: %s: %s", self.admission.request_id, url, error)
                if self._is_committed:
                    raise internal_error() from error
                mismatch = error
            except ApiError as error:
                if not self._may_shorten(error):
                    raise as_sent(error, self.admission.ask) from error
                tried.pop()
                continue
            metrics.RETRIES.inc()
        if mismatch is not None:
            raise internal_error() from mismatch
        raise self._unavailable(is_busy, is_lost)

    def _lost(self, error: Exception) -> None:
        log.warning("%s: %s", self.admission.request_id, error)
        if self._is_committed:
            raise replica_failed() from error

    def _may_shorten(self, error: ApiError) -> bool:
        """A limit that is only our default must not refuse a prompt that fits.

        Prompt and default together did not, so less than the default is left: without a limit the
        replica fills that, which is within what was reserved.
        """
        is_default = self.admission.ask.max_tokens is None and "max_tokens" in self._body
        if error.code != "context_length_exceeded" or not is_default:
            return False
        del self._body["max_tokens"]
        return True

    async def _attempt(self, url: str) -> AsyncGenerator[dict[str, Any], None]:
        replicas, digest = self._runtime.replicas, self.admission.resolved.digest
        dialect = replicas.dialect(url)
        body = dialect.request(self._body, replicas.base_name(url), digest)
        self.relay = Relay(self.admission.ask, self.admission.identity(), dialect, body["model"])
        self._replica = url
        held: list[dict[str, Any]] = []
        is_done = False
        endpoint = self.admission.ask.endpoint
        weight, session = self.admission.principal.weight, self._runtime.session
        with replicas.using(url, digest):
            async with open_stream(session, url, dialect, endpoint, body, weight) as payloads:
                async for payload in payloads:
                    if payload == b"[DONE]":
                        is_done = True
                        continue
                    chunk = self._decode(payload)
                    if chunk is not None:
                        held.append(chunk)
                    # The role alone is no reason to be bound to this replica.
                    if self.relay.has_token and held:
                        replicas.answered(url)
                        await self._commit()
                        for one in held:
                            yield one
                        held.clear()
            if not is_done:
                raise ReplicaLost(f"{url}: closed its stream before [DONE]")
        await self._commit()
        for one in held:
            yield one

    def _decode(self, payload: bytes) -> dict[str, Any] | None:
        try:
            return self.relay.for_client(self.relay.decode(payload))
        except ApiError as error:
            # A replica that stops says so inside its streams.
            if error.code == "overloaded" and not self._is_committed:
                raise ReplicaBusy(error.message) from error
            # Some engines open the stream before they look for the adapter.
            if error.code == "model_not_found" and not self._is_committed:
                raise AdapterGone(error.message) from error
            raise

    async def _commit(self) -> None:
        """From here on the client sees this replica's stream: only once the usage row is in the
        database.
        """
        if self._is_committed:
            return
        if self._opened is not None:
            try:
                await asyncio.shield(self._opened)
            except DatabaseError as error:
                log.error("%s: no usage row: %s", self.admission.request_id, error)
                message = "Usage cannot be recorded now. Try again shortly."
                raise unavailable("metering_unavailable", message) from error
        self._is_committed = True
        self.first_token_at = time.monotonic()

    @property
    def headers(self) -> dict[str, str]:
        """The rate-limit headers of the answer."""
        return dict(self.admission.reservation.headers)

    def fail(self, code: str) -> None:
        self.status, self.error_code = "failed", code

    def _counts(self) -> TokenCounts | None:
        """What was produced. Before the first token it is unknown, not zero, and free."""
        if not self.relay.has_token:
            return None
        tokens = self.relay.tokens
        return TokenCounts(tokens.prompt, tokens.cached, tokens.completion)

    async def settle(self) -> None:
        """Book what was produced, in the ledger and in the counters. Admission calls it, once."""
        counts = self._counts()
        metrics.OPEN_STREAMS.dec()
        metrics.OUTCOMES.labels(self.status).inc()
        if self._start is not None:
            end = UsageEnd(self._start, self.status, counts, self.error_code, self._replica)
            self._runtime.writer.settle(end)
        await self._settle_quota(counts)

    async def _settle_quota(self, counts: TokenCounts | None) -> None:
        quota, reservation = self._runtime.quota, self.admission.reservation
        if counts is None:
            await quota.release(reservation)
            return
        for kind, number in asdict(counts).items():
            metrics.TOKENS.labels(kind).inc(number)
        cost = self.admission.prices.cost_nanos(counts.prompt, counts.cached, counts.completion)
        await quota.settle(reservation, counts.prompt + counts.completion, cost)


def replica_failed() -> ApiError:
    return ApiError(
        code="replica_failed",
        status=502,
        message="The inference replica failed while it was answering. What was produced is billed.",
        type="server_error",
    )
