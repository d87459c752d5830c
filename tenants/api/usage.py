"""/api/tenants/{t}/usage/: rows, sums, files."""

from typing import Any

from django.http import StreamingHttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.base import TenantView
from tenants.api.errors import errors
from tenants.api.fields import AmountField, TotalsSerializer
from tenants.billing.exports import COLUMNS, FORMATS, export
from tenants.billing.periods import Period, parse_period
from tenants.billing.summary import (
    rows_of,
    totals,
    totals_by_adapter,
    totals_by_day,
    totals_by_day_and_adapter,
)
from tenants.errors import ApiError
from tenants.models import KeyScope, UsageRecord

PERIOD = [
    OpenApiParameter("from", OpenApiTypes.STR, description="Included. Default: this month's 1st."),
    OpenApiParameter("to", OpenApiTypes.STR, description="Not included. Default: next midnight."),
]
FORMAT = OpenApiParameter("format", OpenApiTypes.STR, enum=list(FORMATS), required=True)
ADAPTER = OpenApiParameter("adapter", OpenApiTypes.STR, description="Only this adapter's rows.")


class UsageSerializer(serializers.ModelSerializer[UsageRecord]):
    """Token counts that are null are unknown."""

    key = serializers.CharField(source="api_key.public_id", read_only=True, allow_null=True)
    user = serializers.CharField(source="user.username", read_only=True, allow_null=True)
    cost = AmountField(read_only=True)

    class Meta:
        model = UsageRecord
        fields = list(COLUMNS)
        read_only_fields = fields


class DayTotalsSerializer(TotalsSerializer):
    day = serializers.DateField()


class AdapterTotalsSerializer(TotalsSerializer):
    adapter = serializers.CharField(help_text='"" is the base model.')


class DayAdapterTotalsSerializer(AdapterTotalsSerializer):
    day = serializers.DateField()


class SummarySerializer(serializers.Serializer[Any]):
    start = serializers.DateTimeField()
    end = serializers.DateTimeField(help_text="Not included.")
    total = TotalsSerializer()
    by_day = DayTotalsSerializer(many=True)
    by_adapter = AdapterTotalsSerializer(many=True)
    by_day_and_adapter = DayAdapterTotalsSerializer(many=True)


def period_of(request: Request) -> Period:
    query = request.query_params
    return parse_period(query.get("from"), query.get("to"), timezone.now())


class UsageListView(TenantView):
    scope = KeyScope.USAGE

    @extend_schema(
        operation_id="usage_list",
        parameters=[*PERIOD, ADAPTER],
        responses={200: UsageSerializer(many=True), **errors(400, 401, 403, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        """Newest first."""
        rows = rows_of(period_of(request)).select_related("api_key", "user")
        if (adapter := request.query_params.get("adapter")) is not None:
            rows = rows.filter(adapter=adapter)
        return self.paginated(rows, UsageSerializer)


class UsageSummaryView(TenantView):
    scope = KeyScope.USAGE

    @extend_schema(
        operation_id="usage_summary",
        parameters=PERIOD,
        responses={200: SummarySerializer, **errors(400, 401, 403, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        """Sums over the period, in all, by day (UTC), by adapter, and by both."""
        period = period_of(request)
        summary = {
            "start": period.start,
            "end": period.end,
            "total": totals(period),
            "by_day": totals_by_day(period),
            "by_adapter": totals_by_adapter(period),
            "by_day_and_adapter": totals_by_day_and_adapter(period),
        }
        return Response(SummarySerializer(summary).data)


class UsageExportView(TenantView):
    scope = KeyScope.USAGE

    def perform_content_negotiation(
        self, request: Request, force: bool = False
    ) -> tuple[BaseRenderer, str]:
        # `format` here names the file, not one of DRF's renderers; errors are JSON whatever is
        # accepted.
        return JSONRenderer(), JSONRenderer.media_type

    @extend_schema(
        operation_id="usage_export",
        parameters=[FORMAT, *PERIOD],
        responses={
            (200, "text/csv"): OpenApiResponse(OpenApiTypes.STR),
            (200, "application/x-ndjson"): OpenApiResponse(OpenApiTypes.STR),
            **errors(400, 401, 403, 404),
        },
    )
    def get(self, request: Request, tenant: str) -> StreamingHttpResponse:
        """The closed rows of the period, oldest first."""
        format_name = request.query_params.get("format", "")
        if format_name not in FORMATS:
            raise ApiError(
                "invalid_request", 400, f"format: expected csv or jsonl, got {format_name!r}."
            )
        period = period_of(request)
        days = f"{period.start:%Y-%m-%d}_{period.end:%Y-%m-%d}"
        file_name = f"usage_{self.principal.tenant_slug}_{days}.{format_name}"
        return StreamingHttpResponse(
            export(self.principal.tenant_id, period, format_name),
            content_type=FORMATS[format_name][0],
            headers={"Content-Disposition": f'attachment; filename="{file_name}"'},
        )
