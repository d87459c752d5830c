"""Limits, held atomically in the counter store: reserve before, settle or release after.

Two scopes hold at once, the tenant (its plan's limits and its own) and the key that asks (one with
those it was rotated from), in one script call whatever the number of limits; what one of them
refuses leaves nothing in the other.

Bounds. In any 60 s (half-open, by the store's clock) at most requests_per_minute requests are
admitted and at most tokens_per_minute tokens, counted at the admission of their request: reserved
at their upper bound, at their real number once settled. At most max_concurrency requests run.
spent + held never exceeds what a day or month may take, in tokens and in money; what runs is held
against the day and month that are now, and spent in those of its admission. What is given back
goes to the window of admission. A hold of a dead process expires after HOLD_S; a live one's is
refreshed here, in the background. Without the store nobody is admitted (503). A store that was
emptied is refilled from the ledger.
"""

import asyncio
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import astuple
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

import redis.asyncio
from django.conf import settings
from django.db import DatabaseError
from redis.exceptions import RedisError

from tenants.auth import Principal
from tenants.billing.periods import MONTH_CHARS, day_of
from tenants.counters import VERBS, source, store_keys
from tenants.denials import Reply, denial, rate_headers, store_unavailable
from tenants.errors import ApiError
from tenants.limits import NO_LIMITS, Limits
from tenants.notices import Mark, SoftLimits, tell
from tenants.recount import PeriodLedger, read_ledger
from tenants.reservation import Reservation, unknown
from tenants.script_calls import ScriptCalls

log = logging.getLogger(__name__)

Result = TypeVar("Result")

# Of a tenant, or of a family of its keys, in a day or month.
Ledger = Callable[[int, int | None, str], Awaitable[PeriodLedger]]

HOLD_S = 60.0
# Longer than any request may run: what is held longer was forgotten, and is let go.
MAX_HOLD_S = 3600.0
TIMEOUT_S = 2.0


class Quota:
    """One a process and event loop. close() it."""

    def __init__(
        self,
        ledger: Ledger = read_ledger,
        clock_ms: Callable[[], int] | None = None,
        hold_s: float = HOLD_S,
        url: str | None = None,
        tell: Callable[[Mark, int], Awaitable[object]] = tell,
    ) -> None:
        """clock_ms replaces the store's clock (and the days'). tell: of a soft limit reached."""
        self._client = redis.asyncio.Redis.from_url(
            url or settings.REDIS_URL,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            decode_responses=True,
        )
        scripts = {verb: source(verb) for verb in VERBS}
        self._scripts = ScriptCalls(self._client, scripts, TIMEOUT_S)
        self._ledger = ledger
        self._clock_ms = clock_ms
        self._hold_ms = int(hold_s * 1000)
        self._open: dict[str, tuple[Reservation, float]] = {}
        self._unsettled: dict[str, tuple[Reservation, int]] = {}
        self._soft_limits = SoftLimits(tell)
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
        try:
            reservation = await self._reserve(principal, request_id, num_tokens, cost_nanos)
        except asyncio.CancelledError:
            self._spawn(self._undo(principal, request_id))
            raise
        self._open[request_id] = (reservation, time.monotonic())
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat_forever())
        return reservation

    def settle(
        self, reservation: Reservation, num_tokens: int, cost_nanos: int
    ) -> "asyncio.Task[None]":
        """Replace the bounds by what was used, once; a second call changes nothing.

        It is sent before this returns: whoever asks later finds it, and nobody need wait for it.
        Also for a hold that has expired. Never raises for the store's sake: it is retried until the
        store is back, and the budget is then counted from the ledger again.
        """
        return self._spawn(self._settle(reservation, num_tokens, cost_nanos))

    def release(self, reservation: Reservation) -> "asyncio.Task[None]":
        """Give everything back, the request included, as settle() does.

        It never ran. After settle() it does nothing.
        """
        return self._spawn(self._settle(reservation, 0, 0, is_refund=True))

    async def abandon(
        self, tenant_id: int, family_id: int | None, request_id: str, day: str, num_tokens: int
    ) -> None:
        """Free the hold of a request whose process died after num_tokens tokens.

        The ledger has its cost already: the day and month are counted from there again.
        """
        await self._settle(unknown(tenant_id, family_id, request_id, day), num_tokens, None)

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
        await self._scripts.close()
        await self._client.aclose()
        await self._client.connection_pool.disconnect()

    async def _reserve(
        self, principal: Principal, request_id: str, num_tokens: int, cost_nanos: int
    ) -> Reservation:
        tenant_id, family_id, day = principal.tenant_id, principal.family_id, self._today()
        limits, key_limits = principal.limits, principal.key_limits
        reply = await self._hold(principal, request_id, day, num_tokens, cost_nanos)
        scopes = ((None, limits), (family_id, key_limits))
        if reply.status != "ok":
            if reply.status == "spent":
                self._say(self._soft_limits.refused(tenant_id, day, scopes[reply.scope], reply))
            raise denial(principal, reply, num_tokens, cost_nanos, day)
        return Reservation(
            tenant_id=tenant_id,
            family_id=family_id,
            request_id=request_id,
            day=day,
            num_tokens=num_tokens,
            cost_nanos=cost_nanos,
            has_budget=limits.has_budget or key_limits.has_budget,
            generation=reply.generation,
            headers=rate_headers(principal, reply),
            scopes=scopes,
        )

    async def _hold(
        self, principal: Principal, request_id: str, day: str, num_tokens: int, cost_nanos: int
    ) -> Reply:
        """The script's word. What the store has no count of is counted from the ledger first."""
        tenant_id, family_id = principal.tenant_id, principal.family_id
        args = [num_tokens, cost_nanos, self._hold_ms, secrets.token_hex(8)]
        args += [as_text(principal.limits), as_text(principal.key_limits)]
        call = ("reserve", tenant_id, family_id, request_id, day, args)
        reply = Reply.parse(await self._run(*call))
        if reply.status != "uncounted":
            return reply
        await self._rebuild(tenant_id, family_id, day, reply.name)
        return Reply.parse(await self._run(*call))

    def _today(self) -> str:
        if self._clock_ms is None:
            return day_of(datetime.now(UTC))
        return day_of(datetime.fromtimestamp(self._clock_ms() / 1000, UTC))

    async def _rebuild(self, tenant_id: int, family_id: int | None, day: str, names: str) -> None:
        """names: "<0 for the tenant, 1 for its key>:<period>" between spaces."""
        for name in names.split():
            scope, _, period = name.partition(":")
            whose = family_id if scope == "1" else None
            try:
                ledger = await self._ledger(tenant_id, whose, period)
            except DatabaseError as error:
                raise store_unavailable() from error
            ids = " ".join(ledger.recent_ids)
            args = [period, ledger.num_tokens, ledger.spent_nanos, ids]
            await self._run("rebuild", tenant_id, whose, "rebuild", day, args)

    def _settle(
        self,
        held: Reservation,
        num_tokens: int,
        cost_nanos: int | None,
        is_refund: bool = False,
    ) -> Coroutine[Any, Any, None]:
        self._open.pop(held.request_id, None)
        cost = "" if cost_nanos is None else cost_nanos
        args = [held.generation, num_tokens, cost, int(held.has_budget), int(is_refund)]
        sent = self._run("settle", held.tenant_id, held.family_id, held.request_id, held.day, args)
        return self._settled(held, num_tokens, sent)

    async def _settled(
        self, held: Reservation, num_tokens: int, sent: Coroutine[Any, Any, list[Any]]
    ) -> None:
        try:
            reply = await sent
        except ApiError as error:
            log.warning("%s is settled later: %s", held.request_id, error)
            self._unsettled[held.request_id] = (held, num_tokens)
            return
        if held.has_budget:
            self._say(self._soft_limits.settled(held.tenant_id, held.day, held.scopes, reply[2:]))

    def _say(self, news: Iterable[tuple[Mark, int]]) -> None:
        for mark, used in news:
            self._spawn(self._soft_limits.say(mark, used))

    async def _undo(self, principal: Principal, request_id: str) -> None:
        """Of a caller that left before it was told: whether anything was held is not known."""
        held = unknown(principal.tenant_id, principal.family_id, request_id, self._today())
        await self._settle(held, 0, 0, is_refund=True)

    def _run(
        self, verb: str, tenant_id: int, family_id: int | None, name: str, day: str, args: list[Any]
    ) -> Coroutine[Any, Any, list[Any]]:
        """Sent here and now; to await: its reply."""
        now = "" if self._clock_ms is None else self._clock_ms()
        key = "" if family_id is None else family_id
        head = [name, now, key, day, day[:MONTH_CHARS]]
        sent = self._scripts.call(verb, store_keys(tenant_id, family_id), [*head, *args])
        return self._reply(verb, name, sent)

    async def _reply(self, verb: str, name: str, sent: Coroutine[Any, Any, Any]) -> list[Any]:
        try:
            reply: list[Any] = await sent
        except (RedisError, OSError) as error:
            log.warning("%s: the counter store does not answer: %s", verb, error)
            raise store_unavailable() from error
        if reply[0] != name:
            # Another call's answer: this connection is trusted no more.
            await self._scripts.close()
            raise store_unavailable()
        return reply

    def _spawn(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
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
            args = [self._hold_ms, " ".join(ids)]
            await self._run("refresh", tenant_id, None, "refresh", "", args)

    async def _settle_late(self) -> None:
        for request_id, (held, num_tokens) in list(self._unsettled.items()):
            del self._unsettled[request_id]
            # By now the ledger has this request: it is counted from there.
            await self._settle(held, num_tokens, None)


@lru_cache(maxsize=4096)
def as_text(limits: Limits) -> str:
    if limits == NO_LIMITS:
        return ""
    return ",".join("" if limit is None else str(limit) for limit in astuple(limits))
