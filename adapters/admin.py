"""Read only: changing these rows by hand goes past audit, events and the state machine."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from adapters.models import Adapter, AdapterVersion, FleetEvent, Placement, Replica
from tenants.scope import unscoped

# Generic for the type checker only.
if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = admin.ModelAdmin


class ReadOnlyAdmin(_ModelAdmin):
    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        with unscoped():  # The operator sees all tenants.
            return super().get_queryset(request)


@admin.register(Adapter)
class AdapterAdmin(ReadOnlyAdmin):
    list_display = ["tenant", "name", "created_at"]
    list_select_related = ["tenant"]
    search_fields = ["name", "tenant__slug"]
    # Their page would follow scoped references after the scope has closed.
    list_display_links = None


@admin.register(AdapterVersion)
class AdapterVersionAdmin(ReadOnlyAdmin):
    list_display = ["tenant", "adapter", "number", "state", "rank", "size_bytes", "digest"]
    list_select_related = ["tenant", "adapter"]
    list_filter = ["state"]
    search_fields = ["adapter__name", "digest", "tenant__slug"]
    list_display_links = None


@admin.register(Replica)
class ReplicaAdmin(ReadOnlyAdmin):
    list_display = ["url", "dialect", "healthy", "draining_since", "last_seen", "error"]


@admin.register(FleetEvent)
class FleetEventAdmin(ReadOnlyAdmin):
    list_display = ["at", "actor", "action", "target"]
    list_filter = ["action"]
    search_fields = ["actor", "target"]


@admin.register(Placement)
class PlacementAdmin(ReadOnlyAdmin):
    list_display = ["digest", "replica", "state", "attempts", "error", "updated_at"]
    list_select_related = ["replica"]
    list_filter = ["state"]
