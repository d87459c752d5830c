"""A canary's verbs: begin it, change its weight, stop it; what replicas confirm or refuse of it.

Requests meet it only while it runs, which is once a replica has reported its digest. All is called
inside the tenant's scope; each change is audited and told in its transaction.
"""

from typing import Any

from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone
from rest_framework.request import Request

from adapters import tasks
from adapters.canary_models import MAX_PERCENT, MIN_PERCENT
from adapters.fleet import forget_failures
from adapters.gate import require_passed
from adapters.models import Adapter, AdapterVersion, Canary, CanaryState, VersionState
from adapters.transition import label, publish_adapter
from tenants import audit
from tenants.auth import Principal
from tenants.errors import ApiError


def set_canary(
    principal: Principal | audit.Actor,
    version: AdapterVersion,
    percent: int,
    request: Request | None = None,
) -> Canary:
    """Begins it, changes the weight of the one that is this version, or takes another's place.

    Raises ApiError: 400 for a weight out of range, 409 without an active version beside it or for
    one that is not ready.
    """
    if not MIN_PERCENT <= percent <= MAX_PERCENT:
        message = f"percent: expected {MIN_PERCENT} to {MAX_PERCENT}, got {percent}."
        raise ApiError("invalid_percent", 400, message, param="percent")
    with transaction.atomic():
        adapter = Adapter.objects.select_for_update().get(id=version.adapter_id)
        canary = find(adapter)
        is_same = canary is not None and canary.version_id == version.id
        if canary is not None and is_same and canary.state != CanaryState.FAILED:
            _change_weight(principal, canary, percent, request)
            return canary
        _require_fit(adapter, version)
        if canary is not None:
            _end(canary, "canary.stopped", principal, request)
        return _begin(principal, adapter, version, percent, request)


def find(adapter: Adapter) -> Canary | None:
    rows = Canary.objects.select_related("adapter__active_version", "version__adapter")
    return rows.filter(adapter_id=adapter.id).first()


def _require_fit(adapter: Adapter, version: AdapterVersion) -> None:
    if adapter.active_version_id is None:
        message = f"'{adapter.name}' has no active version that a canary could stand beside."
        raise ApiError("no_active_version", 409, message)
    # Held until the canary's row stands: a delete waits, and then finds it.
    held = AdapterVersion.objects.select_for_update().filter(id=version.id).first()
    state = "deleted" if held is None else held.state
    if state != VersionState.READY:
        message = f"{label(version)} is {state}; only a ready version can be a canary."
        raise ApiError("not_ready", 409, message)
    require_passed(adapter, version)


def _begin(
    principal: Principal | audit.Actor,
    adapter: Adapter,
    version: AdapterVersion,
    percent: int,
    request: Request | None,
) -> Canary:
    canary = Canary.objects.create(
        tenant_id=version.tenant_id,
        adapter=adapter,
        version=version,
        percent=percent,
        started_at=timezone.now(),
    )
    forget_failures(version.digest)
    _record(canary, "canary.started", principal, None, {"percent": percent}, request)
    tasks.queue(tasks.reconcile)
    return canary


def _change_weight(
    principal: Principal | audit.Actor, canary: Canary, percent: int, request: Request | None
) -> None:
    """Sent again it is done already, and no change."""
    before, canary.percent = canary.percent, percent
    if before == percent:
        return
    canary.save(update_fields=["percent"])
    old, new = {"percent": before}, {"percent": percent}
    _record(canary, "canary.changed", principal, old, new, request)


def stop_canary(
    principal: Principal | audit.Actor, adapter: Adapter, request: Request | None = None
) -> None:
    """From now on everyone gets the active version. Raises ApiError 404 when there is none."""
    with transaction.atomic():
        held = Adapter.objects.select_for_update().get(id=adapter.id)
        canary = find(held)
        if canary is None:
            raise ApiError("not_found", 404, f"'{adapter.name}' has no canary.")
        _end(canary, "canary.stopped", principal, request)


def end_canary(adapter: Adapter, active: AdapterVersion) -> None:
    """Within the transaction that made `active` the active version: its canary is promoted by it,
    another's is stopped.
    """
    canary = find(adapter)
    if canary is not None:
        is_promoted = canary.version_id == active.id
        _end(canary, "canary.promoted" if is_promoted else "canary.stopped")


def _end(
    canary: Canary,
    action: str,
    actor: Principal | audit.Actor | None = None,
    request: HttpRequest | Request | None = None,
) -> None:
    before = {"percent": canary.percent, "state": canary.state}
    Canary.objects.filter(id=canary.id).delete()
    _record(canary, action, actor, before, None, request)


def confirm_canary(canary: Canary) -> bool:
    """A replica holds it: requests meet it from now on. False: it is no longer that canary."""
    return _settle(canary, CanaryState.RUNNING, "")


def fail_canary(canary: Canary, reason: str) -> bool:
    """Everyone gets the active version; the tenant sees why, and can begin it again."""
    return _settle(canary, CanaryState.FAILED, reason)


def fail_canary_of(version: AdapterVersion, reason: str) -> None:
    """Its promotion failed, and with it the version."""
    rows = Canary.objects.select_related("adapter", "version__adapter")
    if found := rows.filter(version_id=version.id).exclude(state=CanaryState.FAILED).first():
        fail_canary(found, reason)


def refuse_canary(version: AdapterVersion) -> None:
    """Raises ApiError 409 while it is one. Call while its row is held."""
    if Canary.objects.filter(version_id=version.id).exists():
        message = f"{label(version)} is a canary: stop that first."
        raise ApiError("version_in_use", 409, message)


def _settle(canary: Canary, to: CanaryState, error: str) -> bool:
    with transaction.atomic():
        rows = Canary.objects.filter(id=canary.id, state=canary.state, started_at=canary.started_at)
        if rows.update(state=to, error=error) != 1:
            return False
        told = {"state": str(to)} | ({"error": error} if error else {})
        _record(canary, f"canary.{to}", None, {"state": canary.state}, told)
    return True


def _record(
    canary: Canary,
    action: str,
    actor: Principal | audit.Actor | None,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
    request: HttpRequest | Request | None = None,
) -> None:
    actor = actor or audit.system(canary.tenant_id)
    audit.record(actor, action, label(canary.version), before, after, request)
    publish_adapter(canary.adapter)
