"""Desired placement against what replicas report: load what is missing, unload what nothing needs.

One round is safe beside another: a load is claimed by a conditional UPDATE, states follow what
replicas report and not what was hoped, and a replica's answers are idempotent. Whatever a round
leaves undone, the next one finds.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from datetime import timedelta
from functools import partial
from itertools import groupby, islice

from django.db.models import F, Q, QuerySet
from django.utils import timezone

from adapters import storage
from adapters.access import NUM_RETAINED_VERSIONS
from adapters.blobs import BlobError
from adapters.dialects import DIALECTS
from adapters.dialects.dialect import Dialect, ReplicaError
from adapters.evaluation import digests_under_evaluation
from adapters.fleet import (
    MAX_PARALLEL_CALLS,
    Report,
    attempt,
    choose,
    in_parallel,
    poll,
)
from adapters.keeping import keep_near
from adapters.models import (
    AdapterVersion,
    Canary,
    CanaryState,
    Placement,
    PlacementState,
    Replica,
    VersionState,
)
from adapters.registry import sync_replicas
from adapters.replica_http import load, unload
from adapters.settling import settle
from tenants.scope import unscoped

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5
# A digest that an active version needs is tried for ever, but not more often than this.
RETRY_FAILED_AFTER = timedelta(seconds=60)
# Who loads says so every BEAT_S; after CLAIM it is taken for dead, and another loads.
BEAT_S = 2.0
CLAIM = timedelta(seconds=10)
# Caches of pointers are seconds old at most; roll-backs within this time find the bytes in place.
ORPHAN_GRACE = timedelta(seconds=30)
MAX_LOADS_PER_ROUND = 64


def reconcile() -> None:
    """One round. Never raises for a replica's or an adapter's fault."""
    replicas = sync_replicas()
    reports = poll(replicas)
    desired = {digest: choose(digest, replicas, reports) for digest in needed_digests()}
    for report in reports:
        _compare(report, {digest for digest, held in desired.items() if report.replica in held})
    settle(desired)
    if _load_due([report.replica for report in reports]):
        settle(desired)
    _unload_orphans([report.replica for report in reports], desired)
    keep_near(reports)


def needed_digests() -> set[str]:
    """Of active and activating versions, canaries, what aliases are pinned to, what is being
    evaluated, and the last superseded ones of each adapter.
    """
    with unscoped():  # Placement is of all tenants together.
        rows = AdapterVersion.objects.filter(tenant__is_active=True)
        is_current = Q(state__in=[VersionState.ACTIVE, VersionState.ACTIVATING])
        current = rows.exclude(state=VersionState.RETIRED).filter(
            is_current | Q(aliases__isnull=False)
        )
        digests = set(current.values_list("digest", flat=True))
        canaries = Canary.objects.filter(tenant__is_active=True).exclude(state=CanaryState.FAILED)
        digests |= set(canaries.values_list("version__digest", flat=True))
        former = rows.filter(
            state__in=[VersionState.READY, VersionState.ACTIVATING], superseded_at__isnull=False
        ).order_by("adapter_id", "-superseded_at")
        pairs = former.values_list("adapter_id", "digest")
        for _, group in groupby(pairs.iterator(), key=lambda pair: pair[0]):
            digests |= {digest for _, digest in islice(group, NUM_RETAINED_VERSIONS)}
        digests |= digests_under_evaluation()
    return digests


def _compare(report: Report, desired: set[str]) -> None:
    """Placements of one replica follow its report; what others changed since is left alone."""
    rows = {row.digest: row for row in report.replica.placements.all()}
    for digest in desired - rows.keys():
        state = (
            PlacementState.LOADED if digest in report.residency.digests else PlacementState.PENDING
        )
        _create(report.replica, digest, state)
    for digest in report.residency.digests - desired - rows.keys():
        _create(report.replica, digest, PlacementState.ORPHANED)
    for row in rows.values():
        _follow(row, report, row.digest in desired)


def _create(replica: Replica, digest: str, state: PlacementState) -> None:
    now = timezone.now()
    orphaned_at = now if state == PlacementState.ORPHANED else None
    Placement.objects.get_or_create(
        digest=digest,
        replica=replica,
        defaults={"state": state, "next_attempt_at": now, "orphaned_at": orphaned_at},
    )


def _follow(row: Placement, report: Report, is_desired: bool) -> None:
    is_held = row.digest in report.residency.digests
    is_claimed = row.state == PlacementState.LOADING and row.next_attempt_at > timezone.now()
    if is_held and is_desired:
        _move(row, report, PlacementState.LOADED, attempts=0, error="", orphaned_at=None)
    elif is_held:
        _move(row, report, PlacementState.ORPHANED, orphaned_at=report.polled_at)
    elif not is_desired and not is_claimed:
        if _unchanged(row, report).delete()[0]:
            storage.delete_blob_if_unused(row.digest)
    elif row.state in (PlacementState.LOADED, PlacementState.ORPHANED):
        # The replica lost it: restarted, most likely.
        _move(row, report, PlacementState.PENDING, attempts=0, orphaned_at=None)
    elif row.state == PlacementState.LOADING and not is_claimed:
        _move(row, report, PlacementState.PENDING)


def _unchanged(row: Placement, report: Report) -> QuerySet[Placement]:
    """The row, if nobody wrote it since the replica was asked: newer knowledge wins."""
    rows = Placement.objects.filter(id=row.id, state=row.state)
    return rows.filter(updated_at__lte=report.polled_at)


def _move(row: Placement, report: Report, to: PlacementState, **fields: object) -> None:
    if row.state == to:
        return
    now = timezone.now()
    changes = {"state": to, "updated_at": now, "next_attempt_at": now, **fields}
    _unchanged(row, report).update(**changes)


def _load_due(replicas: Sequence[Replica]) -> bool:
    """Loads what is missing on the replicas that answered; whether there was anything."""
    claimed = [row for row in _due(replicas) if _claim(row)]
    if not claimed:
        return False
    with ThreadPoolExecutor(min(MAX_PARALLEL_CALLS, len(claimed))) as pool:
        futures = {pool.submit(attempt, _loader(row)): row for row in claimed}
        waiting = set(futures)
        while waiting:
            # As they end: a slow load keeps no other one's result back.
            ended, waiting = wait(waiting, BEAT_S, FIRST_COMPLETED)
            for future in ended:
                _record_load(futures[future], future.result())
            _keep_claims([futures[future] for future in waiting])
    return True


def _keep_claims(rows: Sequence[Placement]) -> None:
    """Also of those that wait for their turn behind slow ones."""
    claimed = Placement.objects.filter(
        id__in=[row.id for row in rows], state=PlacementState.LOADING
    )
    claimed.update(next_attempt_at=timezone.now() + CLAIM)


def _due(replicas: Sequence[Replica]) -> list[Placement]:
    rows = Placement.objects.select_related("replica").filter(
        replica__in=replicas,
        state__in=[PlacementState.PENDING, PlacementState.FAILED],
        next_attempt_at__lte=timezone.now(),
    )
    # The untried first: what failed before waits behind what never had its turn.
    return list(rows.order_by("attempts", "next_attempt_at")[:MAX_LOADS_PER_ROUND])


def _claim(row: Placement) -> bool:
    now = timezone.now()
    rows = Placement.objects.filter(id=row.id, state=row.state, attempts=row.attempts)
    fields = {"attempts": F("attempts") + 1, "next_attempt_at": now + CLAIM, "updated_at": now}
    if rows.update(state=PlacementState.LOADING, **fields) != 1:
        return False
    row.state, row.attempts = PlacementState.LOADING, row.attempts + 1
    return True


def _loader(row: Placement) -> Callable[[], None]:
    return partial(_load, DIALECTS[row.replica.dialect], row.replica.url, row.digest)


def _load(dialect: Dialect, url: str, digest: str) -> None:
    """The bytes come to this machine before the replica is told where they are."""
    try:
        path = storage.local_blob(digest)
    except BlobError as error:
        raise ReplicaError(f"its bytes are not at hand: {error}") from error
    load(dialect, url, digest, str(path))


def _record_load(row: Placement, result: ReplicaError | None) -> None:
    now = timezone.now()
    fields: dict[str, object] = {"state": PlacementState.LOADED, "attempts": 0, "error": ""}
    if isinstance(result, ReplicaError):
        fields = _failure(row, result)
        log.warning("load of %s on %s: %s", row.digest[:12], row.replica.url, result)
    rows = Placement.objects.filter(id=row.id, state=PlacementState.LOADING, attempts=row.attempts)
    rows.update(**{"next_attempt_at": now, "updated_at": now, **fields})


def _failure(row: Placement, error: ReplicaError) -> dict[str, object]:
    now = timezone.now()
    if error.is_final or row.attempts >= MAX_ATTEMPTS:
        next_attempt_at, state = now + RETRY_FAILED_AFTER, PlacementState.FAILED
    else:
        backoff = timedelta(seconds=2.0 ** (row.attempts - 1))
        next_attempt_at, state = now + backoff, PlacementState.PENDING
    return {"state": state, "error": str(error), "next_attempt_at": next_attempt_at}


def _unload_orphans(replicas: Sequence[Replica], desired: dict[str, list[Replica]]) -> None:
    rows = Placement.objects.select_related("replica").filter(
        Q(orphaned_at__lte=timezone.now() - ORPHAN_GRACE),
        replica__in=replicas,
        state=PlacementState.ORPHANED,
    )
    # Read again here: a version may have been activated while this round was loading.
    needed = needed_digests()
    due = [one for one in rows if one.digest not in needed or _is_surplus(one.digest, desired)]
    calls = [
        partial(unload, DIALECTS[row.replica.dialect], row.replica.url, row.digest) for row in due
    ]
    for row, result in zip(due, in_parallel(calls), strict=True):
        if isinstance(result, ReplicaError):
            log.warning("unload of %s on %s: %s", row.digest[:12], row.replica.url, result)
        elif Placement.objects.filter(id=row.id, state=PlacementState.ORPHANED).delete()[0]:
            storage.delete_blob_if_unused(row.digest)


def _is_surplus(digest: str, desired: dict[str, list[Replica]]) -> bool:
    """Whether every replica that should hold it does: one more only takes room there."""
    chosen = desired.get(digest, [])
    loaded = Placement.objects.filter(
        digest=digest, replica__in=chosen, state=PlacementState.LOADED
    )
    return bool(chosen) and loaded.count() == len(chosen)
