"""Making a version the active one: first replicas confirm its digest, then the pointer moves.

Until then the former version serves. Whichever becomes active, the adapter's canary ends with it.
All is called inside the tenant's scope.
"""

from typing import Any

from django.db import transaction
from django.utils import timezone
from rest_framework.request import Request

from adapters import tasks
from adapters.canary import end_canary, fail_canary_of
from adapters.fleet import forget_failures
from adapters.gate import require_passed
from adapters.models import Adapter, AdapterVersion, VersionState
from adapters.transition import label, move, publish_adapter
from tenants.auth import Principal
from tenants.errors import ApiError

_ACTIVATABLE = (VersionState.READY, VersionState.FAILED, VersionState.RETIRED)


class _Lost(Exception):
    """Someone else moved the version first: nothing of this transaction stands."""


def begin_activation(
    principal: Principal, version: AdapterVersion, request: Request | None = None
) -> AdapterVersion:
    """Phase one. Rolling back is activating an older version, also a retired one; active already is
    no error.

    Raises ApiError 409 for a version that is not published, or that the adapter's gate bars.
    """
    if version.state in (VersionState.ACTIVE, VersionState.ACTIVATING):
        return version
    is_published = bool(version.digest) and not version.quarantine
    if not is_published or version.state not in _ACTIVATABLE:
        message = f"{label(version)} is {version.state}; only a ready version can be activated."
        raise ApiError("not_activatable", 409, message)
    with transaction.atomic():
        adapter = Adapter.objects.select_for_update().get(id=version.adapter_id)
        require_passed(adapter, version)
        for other in _others(version, VersionState.ACTIVATING):
            move(other, VersionState.READY, principal, request, heartbeat_at=None)
        forget_failures(version.digest)
        fields = {"error": "", "heartbeat_at": timezone.now()}
        if move(version, VersionState.ACTIVATING, principal, request, **fields):
            tasks.queue(tasks.reconcile)
    version.refresh_from_db()
    return version


def _others(version: AdapterVersion, state: VersionState) -> list[AdapterVersion]:
    rows = AdapterVersion.objects.select_related("adapter").filter(adapter_id=version.adapter_id)
    return list(rows.filter(state=state).exclude(id=version.id))


def finish_activation(version: AdapterVersion) -> bool:
    """Phase two: the pointer moves, the former version is ready. False: no longer activating."""
    now = timezone.now()
    try:
        with transaction.atomic():
            adapter = Adapter.objects.select_for_update().get(id=version.adapter_id)
            for former in _others(version, VersionState.ACTIVE):
                move(former, VersionState.READY, superseded_at=now)
            fresh: dict[str, Any] = {"superseded_at": None, "heartbeat_at": None, "error": ""}
            if not move(version, VersionState.ACTIVE, activated_at=now, **fresh):
                raise _Lost
            adapter.active_version, adapter.retired_at = version, None
            adapter.save(update_fields=["active_version", "retired_at", "updated_at"])
            end_canary(adapter, version)
            publish_adapter(adapter)
    except _Lost:
        return False
    return True


def fail_activation(version: AdapterVersion, reason: str) -> bool:
    """The former version goes on serving; the tenant sees why, and can retry."""
    with transaction.atomic():
        is_ours = move(version, VersionState.FAILED, error=reason, heartbeat_at=None)
        if is_ours:
            fail_canary_of(version, reason)
    return is_ours
