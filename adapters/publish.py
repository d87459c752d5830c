"""From upload to a version in the store: the verbs that make, retry and remove versions.

All are called inside the tenant's scope; each change is audited and told in its transaction.
"""

import re
from collections.abc import Iterable

from django.db import transaction
from django.db.models import F
from django.utils import timezone
from rest_framework.request import Request

from adapters import storage, tasks
from adapters.access import is_reserved
from adapters.activation import begin_activation
from adapters.canary import refuse_canary
from adapters.models import (
    NAME_PATTERN,
    Adapter,
    AdapterVersion,
    VersionState,
    empty_report,
)
from adapters.names import refuse_pinned, require_free
from adapters.profile import first_profile
from adapters.stored_bytes import require_room
from adapters.transition import label, move, publish_adapter, publish_version
from tenants import audit
from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.models import Plan, Tenant

# States in which a version is in use and cannot be deleted.
_IN_USE = (VersionState.ACTIVE, VersionState.ACTIVATING)


def create_adapter(
    principal: Principal | audit.Actor,
    name: str,
    description: str = "",
    request: Request | None = None,
) -> Adapter:
    """Raises ApiError: 400 for the name, 409 when it is taken, 403 at the plan's limit."""
    check_name(name)
    with transaction.atomic():
        plan = locked_plan(principal)
        require_free(name)
        if Adapter.objects.count() >= plan.max_adapters:
            message = f"The plan allows {plan.max_adapters} adapters; delete one first."
            raise ApiError("adapter_limit_reached", 403, message)
        adapter = Adapter.objects.create(
            tenant_id=principal.tenant_id, name=name, description=description
        )
        audit.record(principal, "adapter.created", name, None, {"name": name}, request)
        publish_adapter(adapter)
    return adapter


def check_name(name: str) -> None:
    if not re.match(NAME_PATTERN, name):
        message = (
            f"'{name[:80]}' is no adapter name: expected 1 to 63 lower-case letters, digits, "
            "'.', '_' and '-', a letter or digit first."
        )
        raise ApiError("invalid_name", 400, message, param="name")
    if is_reserved(name):
        message = f"'{name}' is the base model's name and cannot name an adapter."
        raise ApiError("reserved_name", 400, message, param="name")


def locked_plan(principal: Principal | audit.Actor) -> Plan:
    """Counting against a limit holds the tenant's row: two uploads cannot both be the last."""
    return Tenant.objects.select_for_update().get(id=principal.tenant_id).plan


def upload(
    principal: Principal | audit.Actor,
    name: str,
    quarantine: str,
    request: Request | None = None,
    num_bytes: int = 0,
    source: dict[str, str] | None = None,
) -> AdapterVersion:
    """A version of what lies in quarantine; the adapter is made if it is new. Validation is queued.

    num_bytes: of what lies there; source: where it was fetched from. Raises ApiError as
    create_adapter, and 403 at the plan's limits of versions and of stored bytes.
    """
    check_name(name)
    with transaction.atomic():
        plan = locked_plan(principal)
        adapter = Adapter.objects.filter(name=name).first()
        adapter = adapter or create_adapter(principal, name, request=request)
        number = _new_number(adapter, plan)
        require_room(plan, num_bytes)
        version = _new_version(principal, adapter, number, quarantine, num_bytes, source)
        audit.record(principal, "version.uploaded", label(version), None, source, request)
        publish_version(version, VersionState.UPLOADED)
        tasks.queue(tasks.validate, version.tenant_id, version.id)
    return version


def _new_number(adapter: Adapter, plan: Plan) -> int:
    """Never given again. Raises ApiError 403."""
    if adapter.versions.count() >= plan.max_versions:
        message = f"The plan keeps {plan.max_versions} versions of an adapter; delete one."
        raise ApiError("version_limit_reached", 403, message)
    Adapter.objects.filter(id=adapter.id).update(
        last_number=F("last_number") + 1, updated_at=timezone.now()
    )
    adapter.refresh_from_db()
    return adapter.last_number


def _new_version(
    principal: Principal | audit.Actor,
    adapter: Adapter,
    number: int,
    quarantine: str,
    num_bytes: int,
    source: dict[str, str] | None,
) -> AdapterVersion:
    return AdapterVersion.objects.create(
        tenant_id=principal.tenant_id,
        adapter=adapter,
        number=number,
        quarantine=quarantine,
        size_bytes=num_bytes,
        report=empty_report() | {"facts": {"source": source} if source else {}},
        profile=first_profile(adapter),
        heartbeat_at=timezone.now(),
        created_by=audit.name_of(principal),
    )


def retry(
    principal: Principal, version: AdapterVersion, request: Request | None = None
) -> AdapterVersion:
    """A failed version tries again what failed: its activation, or its validation.

    Raises ApiError 409 in any other state.
    """
    if version.state != VersionState.FAILED:
        message = f"{label(version)} is {version.state}; only a failed version can be retried."
        raise ApiError("not_retryable", 409, message)
    if not version.quarantine:
        return begin_activation(principal, version, request)
    fields = {"error": "", "heartbeat_at": timezone.now()}
    with transaction.atomic():
        if move(version, VersionState.UPLOADED, principal, request, **fields):
            tasks.queue(tasks.validate, version.tenant_id, version.id)
    return version


def delete_version(
    principal: Principal, version: AdapterVersion, request: Request | None = None
) -> None:
    """Raises ApiError 409 while it is active, activating, a canary, or an alias is pinned to it."""
    with transaction.atomic():
        held = AdapterVersion.objects.select_for_update().get(id=version.id)
        if held.state in _IN_USE:
            message = f"{label(held)} is {held.state}: activate another version before deleting it."
            raise ApiError("version_in_use", 409, message)
        refuse_pinned(held)
        refuse_canary(held)
        audit.record(
            principal, "version.deleted", label(held), {"digest": held.digest}, None, request
        )
        publish_version(held, "deleted")
        held.delete()
        _remove_bytes_on_commit([held])


def delete_adapter(principal: Principal, adapter: Adapter, request: Request | None = None) -> None:
    """With all versions, an active one too, and all aliases: their names get 404 from now on."""
    with transaction.atomic():
        versions = list(adapter.versions.all())
        before = {
            "digests": sorted({one.digest for one in versions if one.digest}),
            "aliases": list(adapter.names.filter(is_alias=True).values_list("name", flat=True)),
        }
        audit.record(principal, "adapter.deleted", adapter.name, before, None, request)
        publish_adapter(adapter, is_deleted=True)
        adapter.delete()
        _remove_bytes_on_commit(versions)


def _remove_bytes_on_commit(versions: Iterable[AdapterVersion]) -> None:
    removed = [(one.quarantine, one.digest) for one in versions]

    def remove() -> None:
        for quarantine, digest in removed:
            storage.discard_quarantine(quarantine)
            # What a replica still holds goes when the reconciler has unloaded it.
            if digest:
                storage.delete_blob_if_unused(digest)

    transaction.on_commit(remove, robust=True)
