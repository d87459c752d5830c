"""The replicas: how they are (their own /state), what they hold, which should hold what."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from django.conf import settings
from django.utils import timezone

from adapters.dialects import DIALECTS
from adapters.dialects.dialect import ReplicaError
from adapters.models import Placement, PlacementState, Replica
from adapters.rendezvous import num_wanted, ranked_for
from adapters.replica_http import fetch_state
from adapters.residency import Residency, read_residency
from tenants import events
from tenants.models import Tenant

MAX_PARALLEL_CALLS = 16
# One lost poll is no reason to place everything anew; a dead process is noticed by the second.
UNHEALTHY_AFTER = timedelta(seconds=3)

R = TypeVar("R")


@dataclass(frozen=True)
class Report:
    """What a replica answered in this round."""

    replica: Replica
    polled_at: datetime
    residency: Residency


def poll(replicas: Sequence[Replica]) -> list[Report]:
    """Asks all at once and records how they are; the reports of those that answered."""
    polled_at = timezone.now()
    calls = [partial(fetch_state, DIALECTS[one.dialect], one.url) for one in replicas]
    answers = in_parallel(calls)
    reports = []
    for replica, answer in zip(replicas, answers, strict=True):
        if isinstance(answer, ReplicaError):
            _record_silence(replica, polled_at, str(answer))
        else:
            _record_answer(replica, polled_at, answer)
            reports.append(Report(replica, polled_at, read_residency(answer)))
    return reports


def in_parallel(calls: Sequence[Callable[[], R]]) -> list[R | ReplicaError]:
    """Each call's result or its ReplicaError, in order, after the slowest."""
    if not calls:
        return []
    with ThreadPoolExecutor(min(MAX_PARALLEL_CALLS, len(calls))) as pool:
        return list(pool.map(attempt, calls))


def attempt(call: Callable[[], R]) -> R | ReplicaError:
    try:
        return call()
    except ReplicaError as error:
        return error


def _record_answer(replica: Replica, now: datetime, state: dict[str, Any]) -> None:
    was_healthy = replica.healthy
    fields = {"healthy": True, "last_seen": now, "state": state, "error": ""}
    _record(replica, was_healthy, fields)


def _record_silence(replica: Replica, now: datetime, error: str) -> None:
    lately = replica.last_seen is not None and now - replica.last_seen < UNHEALTHY_AFTER
    fields = {"healthy": replica.healthy and lately, "error": error[:500]}
    _record(replica, replica.healthy, fields)


def _record(replica: Replica, was_healthy: bool, fields: dict[str, Any]) -> None:
    Replica.objects.filter(id=replica.id).update(**fields)
    for name, value in fields.items():
        setattr(replica, name, value)
    if replica.healthy != was_healthy:
        announce(replica)


def announce(replica: Replica) -> None:
    """The id and not the URL: where a replica lives is the operator's business."""
    data = {"replica": replica.id, "is_healthy": replica.healthy}
    for tenant_id in Tenant.objects.filter(is_active=True).values_list("id", flat=True):
        events.publish(tenant_id, "replica.changed", data)


def choose(
    digest: str, replicas: Sequence[Replica], reports: Sequence[Report] = ()
) -> list[Replica]:
    """The healthy replicas that should hold it: the first of its rendezvous order, few of which
    ever move; more than NUM_REPLICAS_PER_ADAPTER while its requests need more.
    """
    by_url = {one.url: one for one in replicas if one.healthy and not one.is_draining}
    num_requests = sum(one.residency.num_requests.get(digest, 0) for one in reports)
    mean = sum(one.residency.load for one in reports) / max(1, len(reports))
    number = max(settings.NUM_REPLICAS_PER_ADAPTER, num_wanted(num_requests, mean))
    return [by_url[url] for url in ranked_for(digest, frozenset(by_url))[:number]]


def forget_failures(digest: str) -> None:
    """Someone asks for it anew: what gave up is tried at once."""
    Placement.objects.filter(digest=digest, state=PlacementState.FAILED).update(
        state=PlacementState.PENDING, attempts=0, next_attempt_at=timezone.now()
    )
