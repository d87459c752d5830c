"""Adapters that a replica should keep near its device, and not only somewhere: pinned, or warm.

The operator decides, since what one adapter keeps the others lack. It follows the adapter's active
version. A replica that cannot is said so in its placement's error; requests are served all the
same, after a copy.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import Q
from rest_framework.request import Request

from adapters import storage, tasks
from adapters.blobs import BlobError
from adapters.dialects import DIALECTS
from adapters.dialects.dialect import Ability, ReplicaError
from adapters.fleet import Report, in_parallel
from adapters.models import Adapter, AdapterVersion, Keep, Placement, PlacementState, VersionState
from adapters.replica_http import load
from adapters.transition import publish_adapter
from tenants import audit
from tenants.scope import tenant_scope, unscoped

log = logging.getLogger(__name__)

_REFUSED = "not kept near: "


@dataclass(frozen=True)
class Order:
    """To one replica: the digest pinned, or not, and in its memory in any case."""

    report: Report
    digest: str
    is_pinned: bool

    def give(self) -> None:
        replica = self.report.replica
        try:
            path = storage.local_blob(self.digest)
        except BlobError as error:
            raise ReplicaError(f"its bytes are not at hand: {error}") from error
        load(DIALECTS[replica.dialect], replica.url, self.digest, str(path), self.is_pinned)


def set_keep(
    actor: audit.Actor, adapter: Adapter, keep: Keep, request: Request | None = None
) -> None:
    """Takes effect with the next round, and with every version activated later."""
    with tenant_scope(adapter.tenant_id), transaction.atomic():
        held = Adapter.objects.select_for_update().get(id=adapter.id)
        before, held.keep = held.keep, keep
        held.save(update_fields=["keep", "updated_at"])
        old, new = {"keep": before}, {"keep": str(keep)}
        audit.record(actor, "adapter.kept", held.name, old, new, request)
        publish_adapter(held)
        tasks.queue(tasks.reconcile)


def keep_near(reports: Sequence[Report]) -> None:
    """Compares what each replica holds with what it should keep near, and asks for the rest."""
    wanted = _wanted()
    errors: dict[tuple[int, str], str] = {}
    orders: list[Order] = []
    for report in reports:
        dialect = DIALECTS[report.replica.dialect]
        if Ability.KEEP in dialect.abilities:
            orders += _orders(report, wanted)
        else:
            reason = f"{_REFUSED}{dialect.name} cannot '{Ability.KEEP}'"
            errors |= {(report.replica.id, digest): reason for digest in wanted}
    results = in_parallel([partial(order.give) for order in orders])
    for order, result in zip(orders, results, strict=True):
        if isinstance(result, ReplicaError):
            errors[order.report.replica.id, order.digest] = f"{_REFUSED}{result}"
            log.warning("%s on %s: %s", order.digest[:12], order.report.replica.url, result)
    _tell([report.replica.id for report in reports], set(wanted), errors)


def _tell(replicas: list[int], wanted: set[str], errors: dict[tuple[int, str], str]) -> None:
    """What could not be kept near shows in its placement, as long as that is so."""
    rows = Placement.objects.filter(replica__in=replicas, state=PlacementState.LOADED)
    for row in rows.filter(Q(error__startswith=_REFUSED) | Q(digest__in=wanted)):
        error = errors.get((row.replica_id, row.digest), "")
        if row.error != error:
            rows.filter(id=row.id).update(error=error)


def _wanted() -> dict[str, Keep]:
    """By digest; of equal bytes of two adapters the nearer."""
    with unscoped():  # Placement is of all tenants together.
        rows = AdapterVersion.objects.filter(state=VersionState.ACTIVE, tenant__is_active=True)
        pairs = list(rows.exclude(adapter__keep=Keep.NO).values_list("digest", "adapter__keep"))
    pinned = {digest: Keep.PINNED for digest, keep in pairs if keep == Keep.PINNED}
    return {digest: Keep(keep) for digest, keep in pairs} | pinned


def _orders(report: Report, wanted: dict[str, Keep]) -> Iterator[Order]:
    rows = report.replica.placements.filter(state=PlacementState.LOADED)
    placed = set(rows.values_list("digest", flat=True))
    for one in report.replica.state["adapters"]:
        digest = one.get("name") if isinstance(one, dict) else None
        if digest in placed and digest in report.residency.digests:
            yield from _order(report, one, wanted.get(digest, Keep.NO))


def _order(report: Report, held: dict[str, Any], keep: Keep) -> Iterator[Order]:
    is_pinned = bool(held.get("pinned"))
    is_away = keep != Keep.NO and held.get("tier") == "disk" and not held.get("is_moving")
    if is_pinned != (keep == Keep.PINNED) or is_away:
        yield Order(report, held["name"], keep == Keep.PINNED)
