"""Second names of an adapter (its active version) or of one of its versions.

All is called inside the tenant's scope; each change is audited and told in its transaction.
"""

from typing import Any

from django.db import transaction
from rest_framework.request import Request

from adapters import tasks
from adapters.models import PUBLISHED_STATES, Adapter, AdapterVersion, ModelName
from adapters.names import own_aliases, require_free
from adapters.publish import check_name, locked_plan
from adapters.transition import label, publish_adapter
from tenants import audit
from tenants.auth import Principal
from tenants.errors import ApiError

# What an alias is pinned to stays on the replicas, so their number is bounded.
MAX_ALIASES = 20


def access_alias(name: str) -> ModelName:
    """Raises ApiError 404."""
    alias = own_aliases().filter(name=name).first() if "\0" not in name else None
    if alias is None:
        raise ApiError("not_found", 404, f"There is no alias '{name[:80]}'.")
    return alias


def create_alias(
    principal: Principal | audit.Actor,
    name: str,
    adapter: Adapter,
    number: int | None,
    request: Request | None = None,
) -> ModelName:
    """Raises ApiError: 400 for the name, 409 when it is taken or the version has no bytes to serve,
    404 for a number that is not there, 403 for too many.
    """
    check_name(name)
    with transaction.atomic():
        locked_plan(principal)
        require_free(name)
        if adapter.names.filter(is_alias=True).count() >= MAX_ALIASES:
            message = f"'{adapter.name}' has {MAX_ALIASES} aliases, which is the limit."
            raise ApiError("alias_limit_reached", 403, message)
        alias = ModelName.objects.create(
            tenant_id=principal.tenant_id,
            name=name,
            adapter=adapter,
            version=_pinnable(adapter, number),
            is_alias=True,
            created_by=audit.name_of(principal),
        )
        audit.record(principal, "alias.created", name, None, target_of(alias), request)
        _tell(alias)
    return alias


def point_alias(
    principal: Principal | audit.Actor,
    alias: ModelName,
    adapter: Adapter,
    number: int | None,
    request: Request | None = None,
) -> None:
    """To another adapter or version. Raises ApiError as create_alias."""
    with transaction.atomic():
        held = ModelName.objects.select_for_update().get(id=alias.id)
        before = target_of(held)
        held.adapter, held.version = adapter, _pinnable(adapter, number)
        if target_of(held) != before:
            held.save(update_fields=["adapter", "version"])
            audit.record(principal, "alias.changed", held.name, before, target_of(held), request)
            _tell(held)
    alias.adapter, alias.version = held.adapter, held.version


def delete_alias(
    principal: Principal | audit.Actor, alias: ModelName, request: Request | None = None
) -> None:
    """Requests by it get 404 from now on; what it was pinned to may leave the replicas."""
    with transaction.atomic():
        audit.record(principal, "alias.deleted", alias.name, target_of(alias), None, request)
        _tell(alias)
        alias.delete()


def target_of(alias: ModelName) -> dict[str, Any]:
    return {
        "adapter": alias.adapter.name,
        "version": alias.version.number if alias.version else None,
    }


def _pinnable(adapter: Adapter, number: int | None) -> AdapterVersion | None:
    """Held until the transaction ends, so that it is not deleted meanwhile."""
    if number is None:
        return None
    version = adapter.versions.select_for_update().filter(number=number).first()
    if version is None:
        raise ApiError("not_found", 404, f"Adapter '{adapter.name}' has no version {number}.")
    if version.state not in PUBLISHED_STATES:
        message = f"{label(version)} is {version.state}; an alias needs one that is ready."
        raise ApiError("not_servable", 409, message)
    return version


def _tell(alias: ModelName) -> None:
    publish_adapter(alias.adapter)
    tasks.queue(tasks.reconcile)
