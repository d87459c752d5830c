"""What replicas confirmed or refused becomes the state of what waits for it: activations, canaries.

One never blocks another: each is settled in its own scope, and what fails is logged.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from adapters.activation import fail_activation, finish_activation
from adapters.canary import confirm_canary, fail_canary
from adapters.models import (
    AdapterVersion,
    Canary,
    CanaryState,
    Placement,
    PlacementState,
    Replica,
    VersionState,
)
from tenants.scope import tenant_scope, unscoped

log = logging.getLogger(__name__)

ACTIVATION_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class Outcome:
    """Of one digest. Neither held nor refused: it is waited for."""

    is_held: bool = False
    refusal: str = ""


def settle(desired: dict[str, list[Replica]]) -> None:
    """desired: digest → the replicas that should hold it."""
    with unscoped():  # Of all tenants.
        versions = AdapterVersion.objects.select_related("adapter")
        activating = list(versions.filter(state=VersionState.ACTIVATING))
        canaries = Canary.objects.select_related("adapter", "version__adapter")
        open_canaries = list(canaries.exclude(state=CanaryState.FAILED))
    for version in activating:
        _settle(version, version.digest, desired)
    for canary in open_canaries:
        _settle(canary, canary.version.digest, desired)


def _settle(row: AdapterVersion | Canary, digest: str, desired: dict[str, list[Replica]]) -> None:
    try:
        with tenant_scope(row.tenant_id):
            if isinstance(row, Canary):
                _settle_canary(row, desired.get(digest, []))
            else:
                _settle_activation(row, desired.get(digest, []))
    except Exception:
        log.exception("%s %s was not settled", type(row).__name__, row.id)


def _settle_activation(version: AdapterVersion, replicas: Sequence[Replica]) -> None:
    found = _outcome(version.digest, replicas, version.heartbeat_at)
    if found.is_held:
        finish_activation(version)
    elif found.refusal:
        fail_activation(version, found.refusal)


def _settle_canary(canary: Canary, replicas: Sequence[Replica]) -> None:
    """One that runs is waited for, as an active version is, until every replica has given it up."""
    is_loading = canary.state == CanaryState.LOADING
    found = _outcome(canary.version.digest, replicas, canary.started_at if is_loading else None)
    if found.is_held and is_loading:
        confirm_canary(canary)
    elif found.refusal:
        fail_canary(canary, found.refusal)


def _outcome(digest: str, replicas: Sequence[Replica], since: datetime | None) -> Outcome:
    """Decided once every chosen replica has; one that holds it is enough. since: None has time."""
    rows = list(Placement.objects.filter(digest=digest, replica__in=replicas))
    states = {row.state for row in rows}
    is_decided = rows and states <= {PlacementState.LOADED, PlacementState.FAILED}
    if is_decided and PlacementState.LOADED in states:
        return Outcome(is_held=True)
    if is_decided:
        error = next(row.error for row in rows if row.error)
        return Outcome(refusal=f"No replica could load it: {error}")
    if since and since < timezone.now() - ACTIVATION_TIMEOUT:
        errors = [row.error for row in rows if row.error] or ["no replica was healthy"]
        return Outcome(refusal=f"Not confirmed in time: {errors[0]}")
    return Outcome()
