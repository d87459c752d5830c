"""From a key or a membership to a Principal: the tenant, its limits, and what the caller may do.

Everything behind the front door takes a Principal; nothing there asks again who is calling.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q
from django.utils import timezone

from tenants.errors import ApiError
from tenants.limits import NO_LIMITS, Limits, limits_of
from tenants.models import ApiKey, KeyScope, Member, Role, Tenant, User
from tenants.scope import tenant_scope, unscoped

KEY_PATTERN = re.compile(r"gh-([0-9A-Za-z]{16})-([0-9A-Za-z]{43})", re.ASCII)
# last_used_at is written at most this often for a key: by its look-up, which the caches of those
# who use it repeat.
LAST_USED_EVERY = timedelta(minutes=1)

# Any member may look; a key may look only where one of its scopes says so.
READ = "read"
# Making and revoking keys. Owners and developers; of keys only those with the admin scope.
KEYS = "keys"
KEY_ROLE = "key"
SCOPES_BY_ROLE: dict[str, frozenset[str]] = {
    Role.OWNER: frozenset({READ, KEYS, *KeyScope.values}),
    Role.DEVELOPER: frozenset({READ, KEYS, KeyScope.INFERENCE, KeyScope.ADAPTERS, KeyScope.USAGE}),
    Role.BILLING: frozenset({READ, KeyScope.USAGE}),
    Role.VIEWER: frozenset({READ}),
}


@dataclass(frozen=True)
class Principal:
    """Who is calling, for which tenant. Of key_id and user_id exactly one is set.

    role is a Role, or "key". scopes are what may be done: KeyScope values, "read", "keys".
    weight: the tenant's beside others' in a busy engine. limits are the tenant's, key_limits those
    that its key has beside them, counted over all of its family: the key and those it was rotated
    from. key_name is for people, key_public_id for logs. allowed_models: names it may ask for;
    None: all of the tenant's.
    """

    tenant_id: int
    tenant_slug: str
    role: str
    limits: Limits
    key_id: int | None
    user_id: int | None
    scopes: frozenset[str]
    cache_salt: str
    weight: float = 1.0
    key_limits: Limits = NO_LIMITS
    key_name: str = ""
    key_public_id: str = ""
    family_id: int | None = None
    allowed_models: frozenset[str] | None = None
    expires_at: datetime | None = None


def authenticate_key(raw: str) -> Principal:
    """The key's principal.

    Raises ApiError 401 invalid_api_key, the same for a malformed, unknown, revoked or expired key
    and for one of a suspended tenant.
    """
    match = KEY_PATTERN.fullmatch(raw)
    if match is None:
        raise invalid_key()
    public_id, secret = match.groups()
    # No tenant is known before the key is: the one unscoped look-up on the request path.
    with unscoped():
        key = (
            ApiKey.objects.select_related("tenant__plan")
            .filter(public_id=public_id, tenant__is_active=True)
            .first()
        )
    if not secret_matches(secret, key.secret_sha256 if key else "") or key is None:
        raise invalid_key()
    if key.revoked_at is not None:
        raise invalid_key()
    caller = principal_of_key(key)
    require_unexpired(caller)
    note_use(key)
    return caller


def require_unexpired(caller: Principal) -> None:
    """Also for one that was kept for a while. Raises ApiError 401 invalid_api_key."""
    if caller.expires_at is not None and caller.expires_at <= timezone.now():
        raise invalid_key()


def hash_secret(secret: str) -> str:
    """Unsalted and fast on purpose: the secret is 256 random bits, not a password."""
    return hashlib.sha256(secret.encode()).hexdigest()


def secret_matches(secret: str, expected_sha256: str) -> bool:
    return hmac.compare_digest(hash_secret(secret), expected_sha256)


def invalid_key() -> ApiError:
    return ApiError(
        "invalid_api_key",
        401,
        "Incorrect API key provided: expected an active key as 'Authorization: Bearer gh-…'. "
        "Keys are made, and revoked ones are listed, in the console under API keys.",
        headers={"WWW-Authenticate": "Bearer"},
    )


def note_use(key: ApiKey) -> None:
    now = timezone.now()
    if key.last_used_at is not None and key.last_used_at > now - LAST_USED_EVERY:
        return
    stale = Q(last_used_at__isnull=True) | Q(last_used_at__lte=now - LAST_USED_EVERY)
    with tenant_scope(key.tenant_id):
        ApiKey.objects.filter(stale, id=key.id).update(last_used_at=now)


def principal_of_key(key: ApiKey) -> Principal:
    extra = {KEYS} if KeyScope.ADMIN in key.scopes else set()
    return principal(key.tenant, KEY_ROLE, frozenset({*key.scopes, *extra}), key=key)


def principal_for_member(user_id: int, tenant_slug: str) -> Principal:
    """A member acts by role, an operator as a viewer of any tenant.

    Raises ApiError 404 for a stranger and for an absent tenant alike, 403 tenant_suspended for
    members of a suspended one.
    """
    tenant = Tenant.objects.select_related("plan").filter(slug=tenant_slug).first()
    # Asked for an absent tenant too: it takes as long as for a stranger's.
    role = role_in(tenant.id if tenant else 0, user_id)
    if tenant is None or role is None:
        raise ApiError("not_found", 404, f"There is no tenant '{tenant_slug}' that you belong to.")
    if not tenant.is_active and not is_operator(user_id):
        raise ApiError("tenant_suspended", 403, f"Tenant '{tenant_slug}' is suspended.")
    return principal(tenant, role, SCOPES_BY_ROLE[role], user_id=user_id)


def role_in(tenant_id: int, user_id: int) -> str | None:
    with tenant_scope(tenant_id):
        member = Member.objects.filter(user_id=user_id, user__is_active=True).first()
    if member is not None:
        return member.role
    return Role.VIEWER if is_operator(user_id) else None


def is_operator(user_id: int) -> bool:
    return User.objects.filter(id=user_id, is_active=True, is_staff=True).exists()


def principal(
    tenant: Tenant,
    role: str,
    scopes: frozenset[str],
    key: ApiKey | None = None,
    user_id: int | None = None,
) -> Principal:
    return Principal(
        tenant_id=tenant.id,
        tenant_slug=tenant.slug,
        role=role,
        limits=limits_of(tenant.plan).tightest(limits_of(tenant)),
        key_id=None if key is None else key.id,
        user_id=user_id,
        scopes=scopes,
        cache_salt=tenant.cache_salt,
        weight=tenant.plan.weight,
        key_limits=NO_LIMITS if key is None else limits_of(key),
        key_name="" if key is None else str(key),
        key_public_id="" if key is None else key.public_id,
        family_id=None if key is None else key.family_id or key.id,
        allowed_models=frozenset(key.allowed_models) or None if key else None,
        expires_at=None if key is None else key.expires_at,
    )


def may_use(caller: Principal, *names: str) -> bool:
    """Whether one of a model's names is among those that the caller may ask for."""
    return caller.allowed_models is None or not caller.allowed_models.isdisjoint(names)


def require_scope(caller: Principal, *accepted: str) -> None:
    """Raises ApiError 403 unless the caller has one of the accepted scopes."""
    if caller.scopes.isdisjoint(accepted):
        who = "This key" if caller.role == KEY_ROLE else f"The role '{caller.role}'"
        wanted = " or ".join(f"'{scope}'" for scope in accepted if scope != READ)
        raise ApiError("permission_denied", 403, f"{who} lacks the scope {wanted}.")
