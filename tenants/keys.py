"""Make, change, rotate and revoke keys. A secret is shown once: what is kept is its sha256."""

import secrets
import string
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone
from django.utils.module_loading import import_string
from rest_framework.request import Request

from tenants.audit import Actor, record
from tenants.auth import Principal, hash_secret
from tenants.errors import ApiError
from tenants.events import publish
from tenants.limits import LIMIT_COLUMNS, limits_of
from tenants.models import ApiKey, KeyState
from tenants.money import plain
from tenants.scope import tenant_scope

ALPHABET = string.ascii_letters + string.digits
# 62**43 > 2**256.
NUM_SECRET_CHARS = 43
NUM_PUBLIC_ID_CHARS = 16
# How long a key that was rotated away goes on working.
DEFAULT_OVERLAP = timedelta(hours=24)
MAX_OVERLAP = timedelta(days=30)


@dataclass(frozen=True)
class NewKey:
    """raw is the whole key, "gh-<public id>-<secret>"; nothing else ever has it."""

    row: ApiKey
    raw: str


def random_text(num_chars: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(num_chars))


def create_key(
    actor: Principal | Actor,
    name: str,
    scopes: list[str],
    expires_at: datetime | None = None,
    request: HttpRequest | Request | None = None,
    limits: Mapping[str, int | Decimal | None] | None = None,
    allowed_models: Iterable[str] = (),
) -> NewKey:
    """limits: of LIMIT_COLUMNS, those that the key has of its own. allowed_models: none is all.

    Raises ApiError 403 for a right that the maker, if a Principal, has not got itself; 400 for a
    model that there is not.
    """
    row = ApiKey(
        tenant_id=actor.tenant_id,
        name=name,
        scopes=sorted(set(scopes)),
        allowed_models=sorted(set(allowed_models)),
        expires_at=expires_at,
        created_by_id=actor.user_id,
        **(limits or {}),
    )
    require_within(actor, row)
    with tenant_scope(actor.tenant_id), transaction.atomic():
        require_known(row.allowed_models)
        made = issue(row)
        record(actor, "key.created", row.public_id, after=summary(row), request=request)
        publish(actor.tenant_id, "key.changed", {"public_id": row.public_id})
    return made


def issue(row: ApiKey) -> NewKey:
    """Save the new row with an id and a secret of its own."""
    row.public_id, secret = random_text(NUM_PUBLIC_ID_CHARS), random_text(NUM_SECRET_CHARS)
    row.secret_sha256 = hash_secret(secret)
    row.save(force_insert=True)
    return NewKey(row, f"gh-{row.public_id}-{secret}")


def require_within(actor: Principal | Actor, row: ApiKey) -> None:
    """Raises ApiError 403 for a right of the key that the actor, if a Principal, has not got."""
    if not isinstance(actor, Principal):
        return
    beyond = ""
    if more := sorted(set(row.scopes) - actor.scopes):
        beyond = f"scopes beyond yours: {more}"
    elif actor.allowed_models is not None and not (
        row.allowed_models and actor.allowed_models.issuperset(row.allowed_models)
    ):
        beyond = f"models beyond yours, which are {sorted(actor.allowed_models)}"
    elif actor.key_limits.tightest(limits_of(row)) != limits_of(row):
        beyond = "limits beyond your own key's"
    if beyond:
        raise ApiError("permission_denied", 403, f"A key cannot be given {beyond}.")


def require_known(names: Collection[str]) -> None:
    """Raises ApiError 400 for what no model of the tenant is called: by a name that is misspelt a
    key would reach nothing, and say nothing of it. Call inside the tenant's scope.
    """
    known: set[str] = import_string(settings.KNOWN_MODEL_NAMES)(names)
    if unknown := sorted(set(names) - known):
        message = (
            f"allowed_models: no adapter, alias or base model is called {', '.join(unknown)}. "
            "For an adapter that is yet to be uploaded, make the adapter first."
        )
        detail = {"field": "allowed_models", "code": "unknown_model", "message": message}
        raise ApiError("invalid_request", 400, message, details=[detail])


def change_key(
    actor: Principal | Actor,
    public_id: str,
    changes: Mapping[str, Any],
    request: HttpRequest | Request | None = None,
) -> ApiKey:
    """changes: columns and their new values.

    Raises ApiError 404; 409 for a key that is over, and for another end of one that was rotated
    away; 403 where the result is beyond what the actor has; 400 for an added model that there is
    not (one that has gone since may stay named).
    """
    with tenant_scope(actor.tenant_id), transaction.atomic():
        row = usable(public_id)
        if row.state == KeyState.REPLACED and "expires_at" in changes:
            message = f"'{public_id}' was rotated, and ends with its overlap; revoke it to end it."
            raise ApiError("key_replaced", 409, message)
        before, known = summary(row), row.allowed_models
        for name, value in changes.items():
            setattr(row, name, sorted(set(value)) if isinstance(value, list) else value)
        require_within(actor, row)
        require_known(set(row.allowed_models) - set(known))
        if (after := summary(row)) != before:
            row.save(update_fields=list(changes))
            record(actor, "key.changed", public_id, before, after, request)
            publish(actor.tenant_id, "key.changed", {"public_id": public_id})
    return row


def rotate_key(
    actor: Principal | Actor,
    public_id: str,
    overlap: timedelta = DEFAULT_OVERLAP,
    request: HttpRequest | Request | None = None,
) -> NewKey:
    """A new key with the rights and limits of this one, which expires after the overlap.

    What expires does so as long after now as the old one did after its making. Raises ApiError 404;
    409 for a key that is over or was rotated already; 403 for one with rights beyond the actor's.
    """
    with tenant_scope(actor.tenant_id), transaction.atomic():
        old = usable(public_id)
        if old.state == KeyState.REPLACED:
            message = f"'{public_id}' was rotated already: rotate 'gh-{old.replaced_by.public_id}'."
            raise ApiError("key_replaced", 409, message)
        require_within(actor, old)
        now, before = timezone.now(), summary(old)
        made = issue(successor(old, actor, now))
        old.expires_at = min(now + overlap, old.expires_at or now + overlap)
        old.save(update_fields=["expires_at"])
        after = summary(old) | {"replaced_by": made.row.public_id}
        record(actor, "key.rotated", public_id, before, after, request)
        publish(actor.tenant_id, "key.changed", {"public_id": public_id})
    return made


def successor(old: ApiKey, actor: Principal | Actor, now: datetime) -> ApiKey:
    lifetime = None if old.expires_at is None else old.expires_at - old.created_at
    return ApiKey(
        tenant_id=old.tenant_id,
        name=old.name,
        scopes=old.scopes,
        allowed_models=old.allowed_models,
        expires_at=None if lifetime is None else now + lifetime,
        created_by_id=actor.user_id,
        replaces=old,
        family_id=old.family_id or old.id,
        **{name: getattr(old, name) for name in LIMIT_COLUMNS},
    )


def usable(public_id: str) -> ApiKey:
    """The key, locked. Raises ApiError 404, 409 for one that is over."""
    row = ApiKey.objects.select_for_update().filter(public_id=public_id).first()
    if row is None:
        raise not_found(public_id)
    if row.state in (KeyState.REVOKED, KeyState.EXPIRED):
        raise ApiError("key_not_active", 409, f"The key '{public_id}' is {row.state.value}.")
    return row


def not_found(public_id: str) -> ApiError:
    return ApiError("not_found", 404, f"There is no key '{public_id}'.")


def revoke_key(
    actor: Principal | Actor, public_id: str, request: HttpRequest | Request | None = None
) -> None:
    """Idempotent. Raises ApiError 404 for a key that the tenant has not got."""
    with tenant_scope(actor.tenant_id), transaction.atomic():
        row = ApiKey.objects.filter(public_id=public_id).first()
        if row is None:
            raise not_found(public_id)
        live = ApiKey.objects.filter(public_id=public_id, revoked_at__isnull=True)
        if live.update(revoked_at=timezone.now()):
            record(actor, "key.revoked", public_id, before=summary(row), request=request)
            publish(actor.tenant_id, "key.changed", {"public_id": public_id})


def summary(row: ApiKey) -> dict[str, object]:
    expires_at = row.expires_at.isoformat() if row.expires_at else None
    limits = {name: getattr(row, name) for name in LIMIT_COLUMNS}
    known = {
        name: plain(limit) if isinstance(limit, Decimal) else limit
        for name, limit in limits.items()
        if limit is not None
    }
    if row.allowed_models:
        known["allowed_models"] = row.allowed_models
    return {"name": row.name, "scopes": row.scopes, "expires_at": expires_at, **known}
