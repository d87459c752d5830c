"""What a tenant's names mean."""

from django.db import models
from django.db.models import Q

from tenants.scope import ScopedModel


class ModelName(ScopedModel):
    """A name that a request's `model` may have: an adapter's own, or an alias of it.

    One table of both, so that the database lets a name mean one thing only. version: what an alias
    is pinned to, which is then served and not deleted; None is the adapter's active version.
    """

    name = models.CharField(max_length=63)
    adapter = models.ForeignKey("adapters.Adapter", on_delete=models.CASCADE, related_name="names")
    version = models.ForeignKey(
        "adapters.AdapterVersion", null=True, on_delete=models.RESTRICT, related_name="aliases"
    )
    is_alias = models.BooleanField(default=False)
    created_by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="model_name_once_per_tenant"),
            models.UniqueConstraint(
                fields=["adapter"], condition=Q(is_alias=False), name="model_name_one_own"
            ),
            models.CheckConstraint(
                condition=Q(is_alias=True) | Q(version=None), name="model_name_own_is_unpinned"
            ),
        ]

    def __str__(self) -> str:
        return self.name
