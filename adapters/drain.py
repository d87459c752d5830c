"""An operator's word that a replica takes nothing new: it ends what it runs, then may be stopped.

Placement puts what it holds on others and leaves it there until they have it; every web process
reads the word within a second, and sends it only requests of what no other has yet. It stands until
it is taken back or the replica leaves the fleet.
"""

import logging

from django.db import transaction
from django.utils import timezone

from adapters import tasks
from adapters.fleet import announce
from adapters.models import FleetEvent, Placement, PlacementState, Replica
from adapters.placement import needed_digests

log = logging.getLogger(__name__)


def set_draining(replica_id: int, is_draining: bool, by: str) -> Replica:
    """Repeating it changes nothing: who said it first stands. Raises Replica.DoesNotExist."""
    with transaction.atomic():
        replica = Replica.objects.select_for_update().get(id=replica_id)
        if replica.is_draining == is_draining:
            return replica
        replica.draining_since = timezone.now() if is_draining else None
        replica.drained_by = by if is_draining else ""
        replica.save(update_fields=["draining_since", "drained_by"])
        action = "replica.drained" if is_draining else "replica.resumed"
        FleetEvent.objects.create(actor=by, action=action, target=replica.url)
        announce(replica)
        tasks.queue(tasks.reconcile)
    log.info("replica %s: %s by %s", replica.url, "drained" if is_draining else "resumed", by)
    return replica


def num_only_here(held: frozenset[str]) -> int:
    """Of what a draining replica holds, the needed versions that none which stays has confirmed; 0
    where none stays.
    """
    staying = Replica.objects.filter(healthy=True, draining_since__isnull=True)
    if not staying.exists():
        return 0
    loaded = Placement.objects.filter(replica__in=staying, state=PlacementState.LOADED)
    return len((needed_digests() & held) - set(loaded.values_list("digest", flat=True)))
