"""Versions and adapters that serve no more and stay for the books.

Their bytes stay too, until they are deleted, so activating one brings it back. All is called inside
the tenant's scope; each change is audited and told in its transaction.
"""

from django.db import transaction
from django.utils import timezone
from rest_framework.request import Request

from adapters import tasks
from adapters.canary import find, refuse_canary, stop_canary
from adapters.models import Adapter, AdapterVersion, VersionState
from adapters.names import refuse_pinned
from adapters.transition import label, move, publish_adapter
from tenants import audit
from tenants.auth import Principal
from tenants.errors import ApiError

# With bytes in the store; of a failed one only if it got that far.
_RETIRABLE = (
    VersionState.READY,
    VersionState.ACTIVATING,
    VersionState.ACTIVE,
    VersionState.FAILED,
)


def retire_version(
    principal: Principal | audit.Actor, version: AdapterVersion, request: Request | None = None
) -> AdapterVersion:
    """Retired already is no error. Raises ApiError 409 for one in use, or without bytes to keep."""
    with transaction.atomic():
        Adapter.objects.select_for_update().get(id=version.adapter_id)
        rows = AdapterVersion.objects.select_for_update().select_related("adapter")
        held = rows.get(id=version.id)
        if held.state == VersionState.RETIRED:
            return held
        _require_idle(held)
        _retire(held, principal, request)
        tasks.queue(tasks.reconcile)
    return held


def _require_idle(version: AdapterVersion) -> None:
    if version.state in (VersionState.ACTIVE, VersionState.ACTIVATING):
        message = f"{label(version)} is {version.state}: activate another, or retire the adapter."
        raise ApiError("version_in_use", 409, message)
    if version.state not in _RETIRABLE or not version.digest or version.quarantine:
        message = f"{label(version)} is {version.state}; only a ready version can be retired."
        raise ApiError("not_retirable", 409, message)
    refuse_pinned(version)
    refuse_canary(version)


def retire_adapter(
    principal: Principal | audit.Actor, adapter: Adapter, request: Request | None = None
) -> None:
    """With all its versions: requests by its name and its aliases get a 404 that says so."""
    with transaction.atomic():
        held = Adapter.objects.select_for_update().get(id=adapter.id)
        if held.retired_at is not None:
            return
        if find(held):
            stop_canary(principal, held, request)
        for version in held.versions.select_related("adapter").filter(state__in=_RETIRABLE):
            if version.digest and not version.quarantine:
                _retire(version, principal, request)
        held.active_version, held.retired_at = None, timezone.now()
        held.save(update_fields=["active_version", "retired_at", "updated_at"])
        audit.record(principal, "adapter.retired", held.name, None, None, request)
        publish_adapter(held)
        tasks.queue(tasks.reconcile)


def _retire(
    version: AdapterVersion, principal: Principal | audit.Actor, request: Request | None
) -> None:
    # Activated again it is a new start: nobody's number reaches it before it is confirmed.
    fields = {"superseded_at": None, "heartbeat_at": None, "error": ""}
    if not move(version, VersionState.RETIRED, principal, request, **fields):
        raise ApiError("conflict", 409, f"{label(version)} was changed meanwhile; try again.")
