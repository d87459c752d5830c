"""/api/tenants/{t}/notices/: which parts of its months' limits were reached."""

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.base import TenantView
from tenants.api.errors import errors
from tenants.models import BudgetKind, BudgetNotice, KeyScope
from tenants.money import from_nanos, plain


class NoticeSerializer(serializers.ModelSerializer[BudgetNotice]):
    """Half, most or all of a month's limit was used. limit and used: tokens, or money, by kind."""

    key = serializers.CharField(
        source="api_key.public_id",
        read_only=True,
        allow_null=True,
        help_text="Whose limit it is; null: the tenant's.",
    )
    key_name = serializers.CharField(source="api_key.name", read_only=True, allow_null=True)
    limit = serializers.SerializerMethodField()
    used = serializers.SerializerMethodField(help_text="At that moment.")

    class Meta:
        model = BudgetNotice
        fields = ["at", "key", "key_name", "month", "kind", "percent", "limit", "used"]
        read_only_fields = fields

    def get_limit(self, row: BudgetNotice) -> str:
        return shown(row, row.limit)

    def get_used(self, row: BudgetNotice) -> str:
        return shown(row, row.used)


def shown(row: BudgetNotice, number: int) -> str:
    return plain(from_nanos(number)) if row.kind == BudgetKind.MONEY else str(number)


class NoticeListView(TenantView):
    scope = KeyScope.USAGE

    @extend_schema(
        operation_id="notices_list",
        responses={200: NoticeSerializer(many=True), **errors(401, 403, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        """Newest first. Each part of each limit is there once a month."""
        rows = BudgetNotice.objects.select_related("api_key")
        return self.paginated(rows, NoticeSerializer)
