"""Make and revoke keys. The secret is shown once: what is kept is its sha256."""

import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone
from rest_framework.request import Request

from tenants.audit import Actor, record
from tenants.auth import Principal, hash_secret
from tenants.errors import ApiError
from tenants.events import publish
from tenants.limits import LIMIT_COLUMNS
from tenants.models import ApiKey
from tenants.money import plain
from tenants.scope import tenant_scope

ALPHABET = string.ascii_letters + string.digits
# 62**43 > 2**256.
NUM_SECRET_CHARS = 43
NUM_PUBLIC_ID_CHARS = 16


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
) -> NewKey:
    """limits: of LIMIT_COLUMNS, those that the key has of its own.

    Raises ApiError 403 for a scope that the maker, if a Principal, has not got itself.
    """
    if isinstance(actor, Principal) and (beyond := sorted(set(scopes) - actor.scopes)):
        raise ApiError(
            "permission_denied", 403, f"A key cannot be given scopes beyond yours: {beyond}."
        )
    public_id, secret = random_text(NUM_PUBLIC_ID_CHARS), random_text(NUM_SECRET_CHARS)
    with tenant_scope(actor.tenant_id), transaction.atomic():
        row = ApiKey.objects.create(
            tenant_id=actor.tenant_id,
            public_id=public_id,
            secret_sha256=hash_secret(secret),
            name=name,
            scopes=sorted(set(scopes)),
            expires_at=expires_at,
            created_by_id=actor.user_id,
            **(limits or {}),
        )
        record(actor, "key.created", public_id, after=summary(row), request=request)
        publish(actor.tenant_id, "key.changed", {"public_id": public_id})
    return NewKey(row, f"gh-{public_id}-{secret}")


def revoke_key(
    actor: Principal | Actor, public_id: str, request: HttpRequest | Request | None = None
) -> None:
    """Idempotent. Raises ApiError 404 for a key that the tenant has not got."""
    with tenant_scope(actor.tenant_id), transaction.atomic():
        row = ApiKey.objects.filter(public_id=public_id).first()
        if row is None:
            raise ApiError("not_found", 404, f"There is no key '{public_id}'.")
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
    return {"name": row.name, "scopes": row.scopes, "expires_at": expires_at, **known}
