"""One admitted request: its stream from a replica, and its settlement, exactly once, whatever ended
it.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import fields
from typing import Any, Literal

from django.db import DatabaseError

from gateway import metrics
from gateway.admitted import Admission
from gateway.attempt import Attempt
from gateway.candidates import Candidates
from gateway.openai.errors import unavailable
from gateway.openai.profile import as_sent
from gateway.openai.relay import BrokenStream, DigestMismatch, Folder, Relay
from gateway.prefix import prefix_key
from gateway.runtime import Runtime
from gateway.upstream import ReplicaBusy, ReplicaLost
from tenants.errors import ApiError
from tenants.metering import TokenCounts, UsageEnd, UsageStart

log = logging.getLogger(__name__)

# What another replica may do better.
RETRIED = (ReplicaBusy, ReplicaLost, BrokenStream, DigestMismatch)
NOTHING = TokenCounts(0, 0, 0)
TOKEN_KINDS = tuple(one.name for one in fields(TokenCounts))

Status = Literal["finished", "cancelled", "failed"]


class Generation:
    """The request on its way: read chunks() or whole(), once.

    settle() is called once, by admission, at the end.
    """

    def __init__(self, runtime: Runtime, admission: Admission) -> None:
        self.admission = admission
        self.routed_at: float | None = None
        self.first_token_at: float | None = None
        # What was booked, once it is.
        self.end: UsageEnd | None = None
        # Until the stream has ended by itself, to leave it is to cancel it.
        self.status: Status = "cancelled"
        self.error_code = ""
        self._runtime = runtime
        self._body = admission.upstream_body()
        self._candidates = candidates(runtime, admission, self._body)
        # The last one asked, and its turn, unless what it produced is written off.
        self._replica = ""
        self._attempt: Attempt | None = None
        self._start: UsageStart | None = None
        self._opened: asyncio.Future[None] | None = None
        # The client has some of the answer: a plain one only when it is whole.
        self._is_committed = False
        metrics.OPEN_STREAMS.inc()

    @property
    def relay(self) -> Relay:
        """Of the replica that answered."""
        assert self._attempt is not None
        return self._attempt.relay

    async def route(self) -> None:
        """Wait for a replica that can serve this digest; ApiError 503 when none can."""
        self._replica = await self._candidates.first()
        self.routed_at = time.monotonic()

    def open(self) -> None:
        """Begin to write the usage row; the first token waits for it, so the replica's prefill
        hides the write.
        """
        self._start = self.admission.usage_start(self._replica)
        self._opened = self._runtime.writer.open(self._start, self._delivered)

    async def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        """A stream's chunks.

        A replica lost before the first of them is replaced unseen; later it is an error.
        """
        while (url := self._candidates.next()) is not None:
            with self._attempting():
                async with aclosing(self._asking(url)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                self.status = "finished"
                return
        raise self._candidates.none_left()

    async def whole(self) -> dict[str, Any]:
        """The one JSON answer.

        Its client has seen nothing before it: whatever replica is lost, another one starts over.
        """
        while (url := self._candidates.next()) is not None:
            folder = Folder(self.admission.ask.endpoint)
            with self._attempting():
                async with aclosing(self._asking(url)) as chunks:
                    async for chunk in chunks:
                        folder.add(chunk)
                self.status, self._is_committed = "finished", True
                return self.relay.whole(folder.choices())
        raise self._candidates.none_left()

    def _asking(self, url: str) -> AsyncGenerator[dict[str, Any], None]:
        self._replica, number = url, self._candidates.num_tried
        self._attempt = Attempt(self._runtime, self.admission, url, self._body, number)
        return self._attempt.chunks(self._bind)

    @contextmanager
    def _attempting(self) -> Iterator[None]:
        """What another replica may do is no error as long as the client has nothing."""
        try:
            yield
        except RETRIED as error:
            self._failed(error)
        except ApiError as error:
            if not self._may_shorten(error):
                raise as_sent(error, self.admission.ask) from error
            self._candidates.forgive()

    def _failed(self, error: Exception) -> None:
        """Another replica is next, unless the client has a part of the answer: then ApiError."""
        level = logging.INFO if isinstance(error, ReplicaBusy) else logging.WARNING
        log.log(level, "%s at %s: %s", self.admission.request_id, self._replica, error)
        self._candidates.failed(error)
        if self._is_committed:
            is_other = isinstance(error, DigestMismatch)
            raise (self._candidates.none_left() if is_other else replica_failed()) from error
        self._write_off()
        metrics.RETRIES.inc()

    def _write_off(self) -> None:
        """What a replica produced and no client gets is ours to pay."""
        counts = self._produced() or NOTHING
        for kind in TOKEN_KINDS:
            metrics.LOST_TOKENS.labels(kind).inc(getattr(counts, kind))
        self._attempt = None

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

    async def _bind(self) -> None:
        """A stream's client sees this replica's tokens from here on. Nobody gets any before the
        usage row is in the database.
        """
        if self._opened is not None:
            try:
                await asyncio.shield(self._opened)
            except DatabaseError as error:
                log.error("%s: no usage row: %s", self.admission.request_id, error)
                message = "Usage cannot be recorded now. Try again shortly."
                raise unavailable("metering_unavailable", message) from error
        self._is_committed = self.admission.ask.is_stream
        self.first_token_at = time.monotonic()

    @property
    def headers(self) -> dict[str, str]:
        """The rate-limit headers of the answer."""
        return dict(self.admission.reservation.headers)

    def fail(self, code: str) -> None:
        self.status, self.error_code = "failed", code

    def _produced(self) -> TokenCounts | None:
        return None if self._attempt is None else self._attempt.produced

    def _delivered(self) -> TokenCounts | None:
        """What is billed should this process die now."""
        return self._produced() if self._is_committed else None

    def settle(self) -> None:
        """Book what was produced, in the ledger and in the counters; nothing of what failed before
        its client had any of it. Admission calls it, once.
        """
        if self.status == "failed" and not self._is_committed:
            self._write_off()
        counts = self._produced()
        metrics.OPEN_STREAMS.dec()
        metrics.OUTCOMES.labels(self.status).inc()
        if self._start is not None:
            self.end = UsageEnd(self._start, self.status, counts, self.error_code, self._replica)
            self._runtime.writer.settle(self.end)
        self._settle_quota(counts)

    def _settle_quota(self, counts: TokenCounts | None) -> None:
        """On its way before the answer's last byte is: the next request finds what came back."""
        quota, reservation = self._runtime.quota, self.admission.reservation
        if counts is None:
            quota.release(reservation)
            return
        for kind in TOKEN_KINDS:
            metrics.TOKENS.labels(kind).inc(getattr(counts, kind))
        cost = self.admission.prices.cost_nanos(counts.prompt, counts.cached, counts.completion)
        quota.settle(reservation, counts.prompt + counts.completion, cost)


def candidates(runtime: Runtime, admission: Admission, body: dict[str, Any]) -> Candidates:
    prefix = prefix_key(admission.principal.cache_salt, body)
    needs_template = "chat_template" in body
    return Candidates(runtime.replicas, admission.resolved, prefix, needs_template)


def replica_failed() -> ApiError:
    return ApiError(
        code="replica_failed",
        status=502,
        message="The inference replica failed while it was answering. What was produced is billed.",
        type="server_error",
    )
