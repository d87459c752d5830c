"""Limits, held atomically in the counter store: reserve before, settle or release after.

Bounds. In any 60 s (half-open, by the store's clock) at most requests_per_minute requests are
admitted and at most tokens_per_minute tokens, counted at the admission of their request: reserved
at their upper bound, at their real number once settled. At most max_concurrency requests run.
spent + held never exceeds the month's budget. What is given back goes to the window and the month
of admission. A hold of a dead process expires after HOLD_S; a live one's is refreshed here, in
the background. Without the store nobody is admitted (503). A store that was emptied is refilled
from the ledger.
"""

import asyncio
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import redis.asyncio
from django.conf import settings
from django.db import DatabaseError, connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from tenants.auth import Principal
from tenants.billing.periods import month_of_ms
from tenants.denials import Reply, denial, rate_headers, store_unavailable
from tenants.errors import ApiError
from tenants.metering import MonthLedger, ledger_of_month
from tenants.script_calls import ScriptCalls

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Ledger = Callable[[int, str], Awaitable[MonthLedger]]

HOLD_S = 60.0
# Longer than any request may run: what is held longer was forgotten, and is let go.
MAX_HOLD_S = 3600.0
TIMEOUT_S = 2.0
MAX_CONNECTIONS = 16
SCRIPT = (Path(__file__).parent / "quota.lua").read_text()
KEY_NAMES = ("window", "tokens", "sums", "holds", "costs", "expired", "recent", "booked")


@dataclass(frozen=True)
class Reservation:
    """What is held for one request. headers: x-ratelimit-* for its answer."""

    tenant_id: int
    request_id: str
    month: str
    num_tokens: int
    cost_nanos: int
    has_budget: bool
    generation: str
    headers: dict[str, str] = field(default_factory=dict)


async def read_ledger(tenant_id: int, month: str) -> MonthLedger:
    """ledger_of_month in a thread, over a connection of its own.

    It is rare, and leaves none behind.
    """
    return await asyncio.to_thread(read_and_close, tenant_id, month)


def read_and_close(tenant_id: int, month: str) -> MonthLedger:
    try:
        return ledger_of_month(tenant_id, month)
    finally:
        connection.close()


class Quota:
    """One a process and event loop. close() it."""

    def __init__(
        self,
        ledger: Ledger = read_ledger,
        clock_ms: Callable[[], int] | None = None,
        hold_s: float = HOLD_S,
        url: str | None = None,
    ) -> None:
        """clock_ms replaces the store's clock (and the month's)."""
        self._client = redis.asyncio.Redis.from_pool(
            redis.asyncio.BlockingConnectionPool.from_url(
                url or settings.REDIS_URL,
                max_connections=MAX_CONNECTIONS,
                timeout=TIMEOUT_S,
                socket_timeout=TIMEOUT_S,
                socket_connect_timeout=TIMEOUT_S,
                # Every verb is idempotent: a connection that the server closed is tried once more.
                retry=Retry(NoBackoff(), 1),
                decode_responses=True,
            )
        )
        self._script = ScriptCalls(self._client, SCRIPT)
        self._ledger = ledger
        self._clock_ms = clock_ms
        self._hold_ms = int(hold_s * 1000)
        self._open: dict[str, tuple[Reservation, float]] = {}
        self._unsettled: dict[str, tuple[Reservation, int]] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._beating: asyncio.Task[None] | None = None

    async def reserve(
        self, principal: Principal, request_id: str, num_tokens: int, cost_nanos: int
    ) -> Reservation:
        """Hold one request, its tokens and its cost at their upper bounds; idempotent by request
        id.

        Raises ApiError 429 (rate_limit_exceeded, insufficient_quota), 503 (quota_unavailable). If
        the caller is cancelled meanwhile, what was held is released.
        """
        work = self._spawn(self._reserve(principal, request_id, num_tokens, cost_nanos))
        try:
            reservation = await asyncio.shield(work)
        except asyncio.CancelledError:
            self._spawn(self._undo(work))
            raise
        self._open[request_id] = (reservation, time.monotonic())
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat_forever())
        return reservation

    async def settle(self, reservation: Reservation, num_tokens: int, cost_nanos: int) -> None:
        """Replace the bounds by what was used, once; a second call changes nothing.

        Also for a hold that has expired. Never raises for the store's sake: it is retried until the
        store is back, and the budget is then counted from the ledger again.
        """
        await asyncio.shield(self._spawn(self._settle(reservation, num_tokens, cost_nanos)))

    async def release(self, reservation: Reservation) -> None:
        """Give everything back, the request included.

        It never ran. After settle() it does nothing.
        """
        await asyncio.shield(self._spawn(self._settle(reservation, 0, 0, is_refund=True)))

    async def abandon(self, tenant_id: int, request_id: str, month: str, num_tokens: int) -> None:
        """Free the hold of a request whose process died after num_tokens tokens.

        The ledger has its cost already: the month is counted from there again.
        """
        held = Reservation(tenant_id, request_id, month, 0, 0, has_budget=True, generation="")
        await self._settle(held, num_tokens, None)

    async def close(self) -> None:
        """Wait for what is under way, then close the connections.

        Open holds expire by themselves.
        """
        if self._beating is not None:
            self._beating.cancel()
            with suppress(asyncio.CancelledError):
                await self._beating
        while self._running:
            await asyncio.wait(self._running)
        await self._client.aclose()
        await self._client.connection_pool.disconnect()

    async def _reserve(
        self, principal: Principal, request_id: str, num_tokens: int, cost_nanos: int
    ) -> Reservation:
        limits, month = principal.limits, month_of_ms(self._clock_ms and self._clock_ms())
        bounds = (
            limits.requests_per_minute,
            limits.tokens_per_minute,
            limits.max_concurrency,
            limits.monthly_budget_nanos,
        )
        args = [month, num_tokens, cost_nanos]
        args += ["" if bound is None else bound for bound in bounds]
        args += [self._hold_ms, secrets.token_hex(8)]
        reply = Reply.parse(await self._run("reserve", principal.tenant_id, request_id, args))
        if reply.status == "rebuild":
            await self._rebuild(principal.tenant_id, month)
            reply = Reply.parse(await self._run("reserve", principal.tenant_id, request_id, args))
        if reply.status != "ok":
            raise denial(principal, reply, num_tokens, cost_nanos, month)
        return Reservation(
            tenant_id=principal.tenant_id,
            request_id=request_id,
            month=month,
            num_tokens=num_tokens,
            cost_nanos=cost_nanos,
            has_budget=limits.monthly_budget_nanos is not None,
            generation=reply.generation,
            headers=rate_headers(limits, reply),
        )

    async def _rebuild(self, tenant_id: int, month: str) -> None:
        try:
            ledger = await self._ledger(tenant_id, month)
        except DatabaseError as error:
            raise store_unavailable() from error
        args = [month, ledger.spent_nanos, " ".join(ledger.recent_ids)]
        await self._run("rebuild", tenant_id, "rebuild", args)

    async def _settle(
        self,
        held: Reservation,
        num_tokens: int,
        cost_nanos: int | None,
        is_refund: bool = False,
    ) -> None:
        self._open.pop(held.request_id, None)
        cost = "" if cost_nanos is None else cost_nanos
        flags = [int(held.has_budget), int(is_refund)]
        args = [held.generation, held.month, num_tokens, cost, *flags]
        try:
            await self._run("settle", held.tenant_id, held.request_id, args)
        except ApiError as error:
            log.warning("%s is settled later: %s", held.request_id, error)
            self._unsettled[held.request_id] = (held, num_tokens)

    async def _undo(self, work: asyncio.Task[Reservation]) -> None:
        with suppress(ApiError):
            await self.release(await work)

    async def _run(self, verb: str, tenant_id: int, name: str, args: list[Any]) -> list[str]:
        keys = [f"quota:{{{tenant_id}}}:{key}" for key in KEY_NAMES]
        now = "" if self._clock_ms is None else self._clock_ms()
        try:
            reply: list[str] = await self._script.call(keys, [verb, name, now, *args])
        except (RedisError, OSError) as error:
            log.warning("%s: the counter store does not answer: %s", verb, error)
            raise store_unavailable() from error
        if reply[0] != name:
            # Another call's answer on this connection: no connection of this pool is trusted now.
            await self._client.connection_pool.disconnect()
            raise store_unavailable()
        return reply

    def _spawn(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        # A call that its caller left goes on to read its reply, so nobody else ever reads it.
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(self._hold_ms / 4000)
            with suppress(ApiError):
                await self._refresh()
                await self._settle_late()

    async def _refresh(self) -> None:
        ids_by_tenant = defaultdict(list)
        for request_id, (held, since) in list(self._open.items()):
            if time.monotonic() - since > MAX_HOLD_S:
                del self._open[request_id]
            else:
                ids_by_tenant[held.tenant_id].append(request_id)
        for tenant_id, ids in ids_by_tenant.items():
            await self._run("refresh", tenant_id, "refresh", [self._hold_ms, " ".join(ids)])

    async def _settle_late(self) -> None:
        for request_id, (held, num_tokens) in list(self._unsettled.items()):
            del self._unsettled[request_id]
            # By now the ledger has this request: it is counted from there.
            await self._settle(held, num_tokens, None)
