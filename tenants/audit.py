"""Who did what: one row an act, in the transaction that does it."""

from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.http import HttpRequest
from rest_framework.request import Request

from tenants.auth import Principal
from tenants.models import ApiKey, AuditEvent, User
from tenants.scope import tenant_scope


@dataclass(frozen=True)
class Actor:
    """Someone who acts without being the tenant's member or key: a task ("system"), an operator."""

    tenant_id: int
    role: str
    user_id: int | None = None
    key_id: int | None = None


def system(tenant_id: int) -> Actor:
    return Actor(tenant_id, "system")


def record(
    actor: Principal | Actor,
    action: str,
    target: str,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    request: HttpRequest | Request | None = None,
) -> AuditEvent:
    """Write down `action` ("<noun>.<verb>") on `target`; before, after: JSON without secrets.

    Raises RuntimeError outside of a transaction: act and record stand or fall together.
    """
    if not connection.in_atomic_block:
        raise RuntimeError(f"{action}: audit rows are written in the transaction of the act")
    with tenant_scope(actor.tenant_id):
        return AuditEvent.objects.create(
            tenant_id=actor.tenant_id,
            user_id=actor.user_id,
            api_key_id=actor.key_id,
            actor=name_of(actor),
            role=actor.role,
            action=action,
            target=target,
            before=before,
            after=after,
            ip=request.META.get("REMOTE_ADDR") or None if request else None,
        )


def name_of(actor: Principal | Actor) -> str:
    if actor.user_id is not None:
        return User.objects.get(id=actor.user_id).get_username()
    if actor.key_id is not None:
        return str(ApiKey.objects.get(id=actor.key_id))
    return actor.role
