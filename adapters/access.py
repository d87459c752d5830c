"""From a tenant and a name to what may be used. Absent and another tenant's are the same 404.

One rule for `model`, exact: the base model's name; "name", the adapter's active version; "name@3",
that version if it is active, a running canary, one of the NUM_RETAINED_VERSIONS that were active
before, or what an alias is pinned to; an alias, which is one of these two. Nothing else, and never
the base model in an adapter's place.
"""

import re
from dataclasses import dataclass, replace

from django.conf import settings
from django.db.models import Q, QuerySet

from adapters.models import (
    NAME_PATTERN,
    Adapter,
    AdapterVersion,
    Canary,
    CanaryState,
    VersionState,
)
from adapters.names import own_aliases
from adapters.profile import ServingProfile, read_profile
from tenants.auth import Principal, may_use
from tenants.errors import ApiError
from tenants.scope import tenant_scope

# Superseded versions of an adapter that stay on the replicas, for pinned requests and roll-back.
NUM_RETAINED_VERSIONS = 2

_PINNED = re.compile(r"(?P<name>[a-z0-9][a-z0-9._-]{0,62})@(?P<number>[1-9]\d{0,8})")
# What the engine calls no adapter; taken so that no client mistakes an adapter for the base.
_RESERVED_NAMES = frozenset({"base"})


@dataclass(frozen=True)
class Resolved:
    """What a request's `model` means. digest, adapter and version are None for the base model.

    canary: what canary_percent of the end users get instead (see share.pick).
    """

    digest: str | None
    adapter: str | None
    version: int | None
    public_name: str
    profile: ServingProfile | None = None
    canary: "Resolved | None" = None
    canary_percent: int = 0


@dataclass(frozen=True)
class ServableModel:
    """An entry of /v1/models. created: seconds since 1970."""

    id: str
    created: int
    owned_by: str
    digest: str | None
    version: int | None


def resolve(caller: Principal, model: str) -> Resolved:
    """Raises ApiError 404 model_not_found, the same for absent, for another tenant's, and for what
    the caller's key may not use.
    """
    if model == settings.BASE_MODEL_NAME and may_use(caller, model):
        return Resolved(None, None, None, model)
    with tenant_scope(caller.tenant_id):
        version, is_by_name = _find(model)
        if version is None or not may_use(caller, model, version.adapter.name):
            raise _retired(caller, model) or model_not_found(model)
        if not is_served(version):
            raise _not_served(version)
        found = _resolved(version, model)
        return _with_canary(found, version.adapter_id) if is_by_name else found


def _find(model: str) -> tuple[AdapterVersion | None, bool]:
    """The version, and whether it is meant as the active one, beside which a canary may stand."""
    if pinned := _PINNED.fullmatch(model):
        return _pinned(pinned["name"], int(pinned["number"])), False
    # What cannot be a name is not asked for: PostgreSQL fails on a NUL.
    if not re.match(NAME_PATTERN, model):
        return None, False
    if active := _active(model):
        return active, True
    alias = own_aliases().select_related("adapter", "version__adapter").filter(name=model).first()
    if alias is None:
        return None, False
    if alias.version is not None:
        return alias.version, False
    return _active(alias.adapter.name), True


def _resolved(version: AdapterVersion, model: str) -> Resolved:
    profile = read_profile(version.profile)
    return Resolved(version.digest, version.adapter.name, version.number, model, profile)


def _with_canary(active: Resolved, adapter_id: int) -> Resolved:
    canary = _running_canaries(adapter_id).select_related("version__adapter").first()
    if canary is None:
        return active
    second = _resolved(canary.version, active.public_name)
    return replace(active, canary=second, canary_percent=canary.percent)


def _running_canaries(adapter_id: int) -> QuerySet[Canary]:
    return Canary.objects.filter(adapter_id=adapter_id, state=CanaryState.RUNNING)


def _active(name: str) -> AdapterVersion | None:
    rows = AdapterVersion.objects.select_related("adapter")
    return rows.filter(adapter__name=name, state=VersionState.ACTIVE).first()


def _pinned(name: str, number: int) -> AdapterVersion | None:
    rows = AdapterVersion.objects.select_related("adapter")
    return rows.filter(adapter__name=name, number=number).first()


def is_served(version: AdapterVersion) -> bool:
    """Whether a request that names it is answered."""
    if version.state == VersionState.ACTIVE:
        return True
    return version.id in served_ids(version.adapter_id)


def served_ids(adapter_id: int) -> set[int]:
    """The adapter's versions that are served beside the active one: a running canary, the last
    superseded ones, and what aliases are pinned to. Call inside the tenant's scope.
    """
    rows = AdapterVersion.objects.filter(adapter_id=adapter_id)
    former = rows.filter(
        state__in=[VersionState.READY, VersionState.ACTIVATING],
        superseded_at__isnull=False,
    ).order_by("-superseded_at")
    retained = former.values("id")[:NUM_RETAINED_VERSIONS]
    pinned = own_aliases().filter(adapter_id=adapter_id, version__isnull=False)
    canaries = _running_canaries(adapter_id).values("version_id")
    is_served = Q(id__in=retained) | Q(id__in=pinned.values("version_id")) | Q(id__in=canaries)
    served = rows.filter(is_served).exclude(state=VersionState.RETIRED)
    return set(served.values_list("id", flat=True))


def model_not_found(model: str) -> ApiError:
    message = f"The model `{model[:200]}` does not exist or you do not have access to it."
    return ApiError("model_not_found", 404, message, param="model")


def _retired(caller: Principal, model: str) -> ApiError | None:
    """For the name or an alias of an adapter whose versions were all retired."""
    if not re.match(NAME_PATTERN, model):
        return None
    adapter = Adapter.objects.filter(names__name=model, retired_at__isnull=False).first()
    if adapter is None or not may_use(caller, model, adapter.name):
        return None
    message = (
        f"The model `{model}` was retired on {adapter.retired_at:%Y-%m-%d}: none of its versions "
        "is served. Activate one to use it again."
    )
    return ApiError("model_not_found", 404, message, param="model")


def _not_served(version: AdapterVersion) -> ApiError:
    if version.state == VersionState.RETIRED:
        message = (
            f"Version {version.number} of `{version.adapter.name}` was retired and is not served. "
            "Activate it to use it again."
        )
        return ApiError("model_not_found", 404, message, param="model")
    message = (
        f"Version {version.number} of `{version.adapter.name}` is not served ({version.state}): "
        f"only the active version, the {NUM_RETAINED_VERSIONS} before it, a running canary and "
        "what aliases are pinned to are. Activate it to use it."
    )
    return ApiError("model_not_found", 404, message, param="model")


def servable_models(caller: Principal) -> list[ServableModel]:
    """The base model, then the tenant's names that mean a version now, aliases too, by name; of
    these, what the caller may use.
    """
    base = ServableModel(settings.BASE_MODEL_NAME, 0, "grafthouse", None, None)
    with tenant_scope(caller.tenant_id):
        rows = AdapterVersion.objects.select_related("adapter", "tenant")
        active = {one.adapter_id: one for one in rows.filter(state=VersionState.ACTIVE)}
        named = [(one.adapter.name, one) for one in active.values()]
        aliases = own_aliases().exclude(version__state=VersionState.RETIRED)
        for alias in aliases.select_related("version__tenant", "version__adapter"):
            version = alias.version or active.get(alias.adapter_id)
            named += [(alias.name, version)] if version else []
    usable = [one for one in named if may_use(caller, one[0], one[1].adapter.name)]
    served = sorted((_servable(*one) for one in usable), key=lambda one: one.id)
    return [base, *served] if may_use(caller, base.id) else served


def _servable(name: str, version: AdapterVersion) -> ServableModel:
    created = version.activated_at or version.created_at
    return ServableModel(
        id=name,
        created=int(created.timestamp()),
        owned_by=version.tenant.slug,
        digest=version.digest,
        version=version.number,
    )


def is_reserved(name: str) -> bool:
    """Whether an adapter of this name could be taken for the base model."""
    return name in _RESERVED_NAMES or name == settings.BASE_MODEL_NAME.lower()


def own_adapters(principal: Principal) -> QuerySet[Adapter]:
    """The caller's adapters. Call inside the tenant's scope."""
    return Adapter.objects.filter(tenant_id=principal.tenant_id)


def access_adapter(principal: Principal, name: str) -> Adapter:
    """Raises ApiError 404. Call inside the tenant's scope."""
    rows = own_adapters(principal).select_related("active_version")
    adapter = rows.filter(name=name).first() if re.match(NAME_PATTERN, name) else None
    if adapter is None:
        raise ApiError("not_found", 404, f"There is no adapter '{name[:80]}'.")
    return adapter


def access_version(principal: Principal, name: str, number: int) -> AdapterVersion:
    """Raises ApiError 404. Call inside the tenant's scope."""
    adapter = access_adapter(principal, name)
    version = adapter.versions.select_related("adapter").filter(number=number).first()
    if version is None:
        raise ApiError("not_found", 404, f"Adapter '{name}' has no version {number}.")
    return version
