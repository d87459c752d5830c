"""How a version changes state: one conditional UPDATE, its audit row and its event together."""

from dataclasses import asdict
from typing import Any

from django.db import transaction
from django.http import HttpRequest
from rest_framework.request import Request

from adapters.models import Adapter, AdapterVersion, VersionState
from adapters.validation.progress import Progress
from tenants import audit, events
from tenants.auth import Principal


def label(version: AdapterVersion) -> str:
    """ "support-bot@3": how audit rows and people name it."""
    return f"{version.adapter.name}@{version.number}"


def move(
    version: AdapterVersion,
    to: VersionState,
    actor: Principal | audit.Actor | None = None,
    request: HttpRequest | Request | None = None,
    **fields: Any,
) -> bool:
    """From the state and attempt that `version` shows to another; False when it is no longer there.

    The attempt fences: a worker that was taken for dead cannot write over its successor. Without an
    actor the system did it. Call inside the tenant's scope.
    """
    before = version.state
    actor = actor or audit.system(version.tenant_id)
    with transaction.atomic():
        rows = AdapterVersion.objects.filter(id=version.id, state=before, attempt=version.attempt)
        if rows.update(state=to, **fields) != 1:
            return False
        old, new = {"state": before}, {"state": str(to), **_told(fields)}
        audit.record(actor, f"version.{to}", label(version), old, new, request)
        publish_version(version, to)
    for name, value in {"state": to, **fields}.items():
        setattr(version, name, value)
    return True


def _told(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: fields[name] for name in ("digest", "rank", "error") if fields.get(name)}


def publish_version(version: AdapterVersion, state: str) -> None:
    data = {"adapter": version.adapter.name, "number": version.number, "state": str(state)}
    events.publish(version.tenant_id, "version.changed", data)


def publish_progress(version: AdapterVersion, progress: Progress) -> None:
    named = {"adapter": version.adapter.name, "number": version.number}
    events.publish(version.tenant_id, "validation.changed", named | asdict(progress))


def publish_adapter(adapter: Adapter, is_deleted: bool = False) -> None:
    data = {"adapter": adapter.name, "is_deleted": is_deleted}
    events.publish(adapter.tenant_id, "adapter.changed", data)
