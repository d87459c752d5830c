"""Whether a name is free, and what aliases hold fast. Call inside the tenant's scope."""

from collections.abc import Collection

from django.conf import settings
from django.db.models import QuerySet

from adapters.models import AdapterVersion, ModelName
from adapters.transition import label
from tenants.errors import ApiError


def own_aliases() -> QuerySet[ModelName]:
    """By name, with their targets."""
    return ModelName.objects.select_related("adapter", "version").filter(is_alias=True)


def known_names(names: Collection[str]) -> set[str]:
    """Of these, what a request's model may be: the base's name, those of the tenant's adapters,
    also of one without a version, and its aliases.
    """
    found = ModelName.objects.filter(name__in=names).values_list("name", flat=True)
    return {*found, settings.BASE_MODEL_NAME}.intersection(names)


def require_free(name: str) -> None:
    """Raises ApiError 409. Call while the tenant's row is held: the database refuses a name twice,
    but cannot say why.
    """
    refuse_alias(name)
    if ModelName.objects.filter(name=name).exists():
        raise ApiError("adapter_exists", 409, f"There is already an adapter '{name}'.")


def refuse_alias(name: str) -> None:
    """Raises ApiError 409 for what would make an adapter of an alias's name."""
    alias = own_aliases().filter(name=name).first()
    if alias is not None:
        message = f"'{name}' is an alias of '{alias.adapter.name}': use that, or delete the alias."
        raise ApiError("alias_exists", 409, message)


def refuse_pinned(version: AdapterVersion) -> None:
    """Raises ApiError 409 while an alias names it. Call while its row is held."""
    names = list(version.aliases.values_list("name", flat=True))
    if names:
        message = f"{label(version)} is what the alias {', '.join(names)} means: change that first."
        raise ApiError("version_in_use", 409, message)
