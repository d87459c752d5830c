"""/api/tenants/ and /api/tenants/{t}/."""

from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.base import TenantView
from tenants.api.errors import errors
from tenants.api.fields import LimitsSerializer, TotalsSerializer
from tenants.api.pagination import Pagination
from tenants.auth import KEY_ROLE, KEYS, READ, Principal
from tenants.billing.periods import Period, day_of, month_of
from tenants.billing.summary import totals
from tenants.limits import LIMIT_COLUMNS, lower
from tenants.models import KeyScope, Plan, Role, Tenant, User


class TenantSerializer(serializers.ModelSerializer[Tenant]):
    plan = serializers.CharField(source="plan.name", read_only=True)

    class Meta:
        model = Tenant
        fields = ["slug", "name", "plan"]
        read_only_fields = fields


class PlanSerializer(LimitsSerializer, serializers.ModelSerializer[Plan]):
    """A limit that is null is none."""

    class Meta:
        model = Plan
        fields = [
            "name",
            "slug",
            *LIMIT_COLUMNS,
            "max_rank",
            "max_adapters",
            "max_versions",
            "max_upload_bytes",
            "max_upload_parts",
            "max_open_uploads",
            "max_stored_bytes",
        ]
        read_only_fields = fields


class TenantDetailSerializer(serializers.Serializer[Any]):
    slug = serializers.CharField()
    name = serializers.CharField()
    plan = PlanSerializer()
    limits = LimitsSerializer(
        help_text="What holds: of each limit the tighter of the plan's and the tenant's own."
    )
    role = serializers.ChoiceField(choices=[*Role.values, KEY_ROLE])
    permissions = serializers.ListField(
        child=serializers.ChoiceField(choices=[READ, KEYS, *KeyScope.values]),
        help_text="What the caller may do here.",
    )
    usage_this_month = TotalsSerializer(help_text="The calendar month, UTC.")
    usage_today = TotalsSerializer(help_text="The calendar day, UTC.")
    created_at = serializers.DateTimeField()


class TenantListView(generics.ListAPIView[Tenant]):
    """The caller's tenants; all of them for an operator."""

    serializer_class = TenantSerializer
    pagination_class = Pagination
    queryset = Tenant.objects.none()

    def get_queryset(self) -> QuerySet[Tenant]:
        tenants = Tenant.objects.select_related("plan").order_by("slug")
        if isinstance(self.request.auth, Principal):
            return tenants.filter(id=self.request.auth.tenant_id)
        if not isinstance(self.request.user, User):
            return tenants.none()
        if self.request.user.is_staff:
            return tenants
        return tenants.filter(member__user=self.request.user, is_active=True)

    @extend_schema(operation_id="tenants_list", responses={200: TenantSerializer, **errors(401)})
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)


class TenantDetailView(TenantView):
    scope = KeyScope.USAGE

    @extend_schema(
        operation_id="tenant_retrieve",
        responses={200: TenantDetailSerializer, **errors(401, 403, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        """The tenant, its limits, and what the caller may do there."""
        row = Tenant.objects.select_related("plan").get(id=self.principal.tenant_id)
        now = timezone.now()
        detail = {
            "slug": row.slug,
            "name": row.name,
            "plan": row.plan,
            "limits": {
                name: lower(getattr(row.plan, name), getattr(row, name)) for name in LIMIT_COLUMNS
            },
            "role": self.principal.role,
            "permissions": sorted(self.principal.scopes),
            "usage_this_month": totals(Period.of_month(month_of(now))),
            "usage_today": totals(Period.named(day_of(now))),
            "created_at": row.created_at,
        }
        return Response(TenantDetailSerializer(detail).data)
