"""What each replica of the fleet last said of itself: polled every second, read by the router.

A replica is down after MAX_FAILURES polls in a row, or at once when it loses a request; up again
with its next good answer, and takes work again when its breaker lets it, or when no other replica
does. Each web process keeps its own table: nothing here is shared or stored.
"""

import asyncio
import logging
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from django.db import Error

from adapters.dialects import DIALECTS
from adapters.dialects.dialect import Answer, Dialect, ReplicaError
from adapters.registry import configured, fleet
from adapters.residency import Residency, read_residency
from gateway import breaker, metrics
from gateway.breaker import Breaker
from gateway.database_process import Ask
from gateway.openai.relay import BrokenStream, DigestMismatch
from gateway.router import Snapshot, Wish, current_load, rank, takers
from gateway.spreads import Spreads
from gateway.upstream import ReplicaLost

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 1.0
POLL_TIMEOUT_S = 2.0
MAX_FAILURES = 2
# A request whose adapter seems absent asks again at once, but the fleet is not asked more often
# than this.
MIN_REFRESH_INTERVAL_S = 0.1
# Of a replica that is not there, or says what cannot be read.
NO_REPORT = (aiohttp.ClientError, OSError, ValueError, TypeError, KeyError, ReplicaError)
NOTHING = Residency(frozenset(), frozenset(), 0, {})


@dataclass
class Replica:
    """The table's row.

    num_sent counts this process's open streams; num_sent_at_poll, those when it last reported.
    doubts: a breaker for each digest (None: the base) in whose place it used another.
    """

    url: str
    dialect: Dialect
    is_ready: bool = False
    is_draining: bool = False
    num_failures: int = 0
    num_sent: int = 0
    num_sent_at_poll: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    residency: Residency = NOTHING
    breaker: Breaker = field(default_factory=Breaker)
    doubts: dict[str | None, Breaker] = field(default_factory=dict)

    def snapshot(self, now_s: float, is_last: bool = False) -> Snapshot:
        """is_last: no replica takes work, so that an open breaker spares nobody anything."""
        mine = self.breaker
        takes_work = not mine.is_tried if is_last else breaker.takes_work(mine, now_s)
        return Snapshot(
            url=self.url,
            is_ready=self.is_ready and takes_work,
            digests=self.residency.digests,
            load=current_load(self.residency.load, self.num_sent, self.num_sent_at_poll),
            max_model_len=max_model_len(self.state),
            on_device=self.residency.on_device,
            num_requests=self.residency.num_requests,
            is_draining=self.is_draining,
            doubted=self._doubted(now_s) if self.doubts else frozenset(),
        )

    def _doubted(self, now_s: float) -> frozenset[str | None]:
        return frozenset(
            one for one, doubt in self.doubts.items() if not breaker.takes_work(doubt, now_s)
        )


class ReplicaTable:
    def __init__(self, session: aiohttp.ClientSession, read: Ask) -> None:
        """read: the database, where the fleet is written down."""
        self._session = session
        self._read = read
        spoken = configured().items()
        self._replicas = {url: Replica(url, DIALECTS[name]) for url, name in spoken}
        self._spreads = Spreads()
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_at = float("-inf")

    def snapshots(self) -> list[Snapshot]:
        now_s = time.monotonic()
        fleet = [replica.snapshot(now_s) for replica in self._replicas.values()]
        if takers(fleet):
            return fleet
        return [replica.snapshot(now_s, is_last=True) for replica in self._replicas.values()]

    def order(self, digest: str | None, prefix: str) -> list[str]:
        """The replicas that may serve this request, best first."""
        fleet, num_replicas = self.snapshots(), 1
        if digest is not None:
            num_replicas = self._spreads.num_replicas(digest, fleet, time.monotonic())
        return [one.url for one in rank(Wish(digest, prefix, num_replicas), fleet)]

    def is_any_ready(self) -> bool:
        """Whether one answers its polls; its breaker may still be open."""
        return any(one.is_ready for one in self._replicas.values())

    def is_any_taking(self) -> bool:
        """Whether one takes new work now."""
        return bool(takers(self.snapshots()))

    def is_doubted(self, digest: str | None) -> bool:
        """Whether one that takes work answered, lately, with another version than this."""
        return any(digest in one.doubted for one in takers(self.snapshots()))

    def max_model_len(self) -> int | None:
        """The longest context that a ready replica has; None while none is ready."""
        ready = [one.state for one in self._replicas.values() if one.is_ready]
        lengths = [max_model_len(state) for state in ready]
        return max(lengths, default=None)

    def base_name(self, url: str) -> str:
        """What the replica calls its base model."""
        return str(self._replicas[url].state.get("model", ""))

    def dialect(self, url: str) -> Dialect:
        return self._replicas[url].dialect

    async def poll_forever(self) -> None:
        while True:
            await self.refresh()
            await asyncio.sleep(POLL_INTERVAL_S)

    async def follow_fleet(self) -> None:
        while True:
            await self.read_fleet()
            await asyncio.sleep(POLL_INTERVAL_S)

    async def read_fleet(self) -> None:
        """Which replicas there are, and the operator's word on them. While the database is away,
        what was read last stands.
        """
        try:
            found = await self._read(fleet)
        except Error as error:
            log.warning("which replicas there are is unknown: %s", error)
            return
        for url in self._replicas.keys() - found.keys():
            self._remove(url)
        for url, (name, is_draining) in found.items():
            if url in self._replicas and self._replicas[url].dialect.name != name:
                self._remove(url)
            replica = self._replicas.setdefault(url, Replica(url, DIALECTS[name]))
            replica.is_draining = is_draining

    def _remove(self, url: str) -> None:
        """Not under a request of this process: then at a later reading."""
        if self._replicas[url].num_sent == 0:
            log.info("replica %s left the fleet", url)
            del self._replicas[url]

    async def refresh(self) -> None:
        """Ask every replica now; callers at the same time share one round, and rounds keep their
        distance.
        """
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
        await asyncio.shield(self._refreshing)

    async def _refresh(self) -> None:
        wait_s = self._refreshed_at + MIN_REFRESH_INTERVAL_S - time.monotonic()
        await asyncio.sleep(max(0.0, wait_s))
        await asyncio.gather(*(self._poll(replica) for replica in self._replicas.values()))
        self._refreshed_at = time.monotonic()

    async def _poll(self, replica: Replica) -> None:
        num_sent = replica.num_sent
        try:
            state = await self._fetch_state(replica)
            residency = read_residency(state)
        except NO_REPORT as error:
            self._failed(replica, error)
        else:
            if not replica.is_ready:
                log.info("replica %s is ready", replica.url)
            replica.is_ready, replica.num_failures = True, 0
            replica.state, replica.residency = state, residency
            # What it loads again is not what it held.
            kept = {None, *residency.digests}
            replica.doubts = {one: doubt for one, doubt in replica.doubts.items() if one in kept}
            replica.num_sent_at_poll = num_sent
        observe(replica)

    async def _fetch_state(self, replica: Replica) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=POLL_TIMEOUT_S)
        answers = []
        for call in replica.dialect.state_calls:
            url = replica.url + call.path
            async with self._session.request(call.method, url, timeout=timeout) as response:
                answers.append(Answer(response.status, await response.read()))
        return replica.dialect.read_state(answers)

    def _failed(self, replica: Replica, error: Exception) -> None:
        replica.num_failures += 1
        if replica.is_ready and replica.num_failures >= MAX_FAILURES:
            log.warning("replica %s is down: %r", replica.url, error)
            replica.is_ready = False

    @contextmanager
    def using(self, url: str, digest: str | None) -> Iterator[None]:
        """A request to this replica. How it ends is what its breaker learns."""
        replica = self._replicas[url]
        was_open = replica.breaker.is_open
        replica.num_sent += 1
        self._spreads.opened(digest)
        try:
            with learning(replica, digest):
                yield
        finally:
            replica.num_sent -= 1
            self._spreads.closed(digest)
            # While all is well the polls tell of it often enough.
            if was_open or replica.breaker.is_open or not replica.is_ready:
                observe(replica)

    def answered(self, url: str) -> None:
        """Its first token came."""
        replica = self._replicas[url]
        replica.breaker = breaker.answered(replica.breaker)


@contextmanager
def learning(replica: Replica, digest: str | None) -> Iterator[None]:
    """What its breaker, and that of the digest, make of a request's end."""
    replica.breaker = breaker.sent(replica.breaker)
    if digest in replica.doubts:
        replica.doubts[digest] = breaker.sent(replica.doubts[digest])
    try:
        yield
    except (ReplicaLost, BrokenStream) as error:
        lost(replica, "malformed" if isinstance(error, BrokenStream) else error.kind)
        raise
    except DigestMismatch:
        doubt(replica, digest)
        raise
    except BaseException:
        replica.breaker = breaker.left(replica.breaker)
        raise
    else:
        replica.breaker = Breaker()
        replica.doubts.pop(digest, None)
    finally:
        if digest in replica.doubts:
            replica.doubts[digest] = breaker.left(replica.doubts[digest])


def lost(replica: Replica, kind: str) -> None:
    """None for longer if it loses many in a row; no further ones until a poll succeeds, unless what
    it sent shows that it lives.
    """
    metrics.LOSSES.labels(replica.url, kind).inc()
    was_open = replica.breaker.is_open
    replica.breaker = breaker.failed(replica.breaker, time.monotonic(), random.random())
    if replica.breaker.is_open and not was_open:
        log.warning("replica %s loses its requests: its breaker opens", replica.url)
    if kind != "malformed":
        replica.is_ready, replica.num_failures = False, max(replica.num_failures, MAX_FAILURES)


def doubt(replica: Replica, digest: str | None) -> None:
    """It used another version in this one's place: once is enough to ask it for this one no more,
    for longer if it does so again. What else it holds is not in doubt.
    """
    metrics.MISMATCHES.inc()
    replica.breaker = breaker.left(replica.breaker)
    before = replica.doubts.get(digest, Breaker())
    if before.is_open and not before.is_tried:
        # Of those that were under way when it was first doubted: no news.
        return
    replica.doubts[digest] = breaker.tripped(before, time.monotonic(), random.random())
    log.error("replica %s is not asked for %s for a while", replica.url, digest or "the base")


def observe(replica: Replica) -> None:
    now_s = time.monotonic()
    state = breaker.state(replica.breaker, now_s)
    metrics.observe_replica(replica.snapshot(now_s))
    metrics.REPLICA_BREAKER.labels(replica.url).set(state)


def max_model_len(state: dict[str, Any]) -> int:
    return int(state.get("max_model_len", 0))
