"""The canary beside an adapter's active version: its weight, and both versions' figures."""

from typing import Any

from django.db.models import Count, Q
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from adapters.access import access_adapter, access_version
from adapters.activation import begin_activation
from adapters.canary import find, set_canary, stop_canary
from adapters.models import AdapterVersion, Canary, CanaryState
from tenants.api.base import TenantView
from tenants.api.errors import errors
from tenants.api.parsers import JSONParser
from tenants.billing.summary import SUMS, totals_of
from tenants.errors import ApiError
from tenants.models import KeyScope, UsageRecord, UsageStatus


class NewCanarySerializer(serializers.Serializer[Any]):
    version = serializers.IntegerField(
        min_value=1, required=False, help_text="Of the canary. Default: the one there is."
    )
    percent = serializers.IntegerField(
        min_value=0, max_value=100, help_text="Of the end users. 0 stops it, 100 activates it."
    )


class VersionFiguresSerializer(serializers.Serializer[Any]):
    number = serializers.IntegerField()
    digest = serializers.CharField()
    num_requests = serializers.IntegerField()
    num_errors = serializers.IntegerField(help_text="Requests that ended as failed.")
    prompt_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()


class CanarySerializer(serializers.ModelSerializer[Canary]):
    version = serializers.IntegerField(source="version.number")
    state = serializers.ChoiceField(choices=CanaryState.choices)
    error = serializers.CharField(allow_blank=True, help_text="Why no replica could hold it.")
    started_at = serializers.DateTimeField(help_text="Since when requests are counted.")
    active_figures = serializers.SerializerMethodField()
    canary_figures = serializers.SerializerMethodField()

    class Meta:
        model = Canary
        fields = [
            "version",
            "percent",
            "state",
            "error",
            "started_at",
            "active_figures",
            "canary_figures",
        ]

    @extend_schema_field(VersionFiguresSerializer(allow_null=True))
    def get_active_figures(self, canary: Canary) -> dict[str, Any] | None:
        active = canary.adapter.active_version
        return None if active is None else figures(canary, active)

    @extend_schema_field(VersionFiguresSerializer)
    def get_canary_figures(self, canary: Canary) -> dict[str, Any]:
        return figures(canary, canary.version)


def figures(canary: Canary, version: AdapterVersion) -> dict[str, Any]:
    """Of the ledger since the canary began; requests that named the version are among them."""
    rows = UsageRecord.objects.filter(
        started_at__gte=canary.started_at, adapter=canary.adapter.name, version=version.number
    )
    is_failed = Q(status=UsageStatus.FAILED)
    sums = rows.order_by().aggregate(**SUMS, num_errors=Count("id", filter=is_failed))
    counts = {**totals_of(sums), "num_errors": sums["num_errors"]}
    return {"number": version.number, "digest": version.digest, **counts}


class CanaryView(TenantView):
    scope = KeyScope.ADAPTERS
    parser_classes = [JSONParser]

    @extend_schema(
        operation_id="canary_retrieve",
        responses={200: CanarySerializer, **errors(401, 403, 404)},
    )
    def get(self, request: Request, tenant: str, name: str) -> Response:
        return Response(CanarySerializer(self.existing(name)).data)

    @extend_schema(
        operation_id="canary_update",
        request=NewCanarySerializer,
        responses={
            200: CanarySerializer,
            202: CanarySerializer,
            204: None,
            **errors(400, 401, 403, 404, 409),
        },
        description="1 to 99 begins it or changes its weight (200). 0 stops it (204), as DELETE "
        "does. 100 activates its version (202); the canary goes once that is active.",
    )
    def put(self, request: Request, tenant: str, name: str) -> Response:
        body = NewCanarySerializer(data=request.data)
        body.is_valid(raise_exception=True)
        percent, number = body.validated_data["percent"], body.validated_data.get("version")
        if percent == 0:
            return self.delete(request, tenant, name)
        if number is None:
            number = self.existing(name).version.number
        version = access_version(self.principal, name, number)
        if percent < 100:
            found = set_canary(self.principal, version, percent, request)
            return Response(CanarySerializer(found).data)
        if self.existing(name).version_id != version.id:
            raise ApiError("not_canary", 409, f"Version {number} is not the canary of '{name}'.")
        begin_activation(self.principal, version, request)
        return Response(CanarySerializer(self.existing(name)).data, status=202)

    @extend_schema(operation_id="canary_destroy", responses={204: None, **errors(401, 403, 404)})
    def delete(self, request: Request, tenant: str, name: str) -> Response:
        stop_canary(self.principal, access_adapter(self.principal, name), request)
        return Response(status=204)

    def existing(self, name: str) -> Canary:
        found = find(access_adapter(self.principal, name))
        if found is None:
            raise ApiError("not_found", 404, f"'{name}' has no canary.")
        return found
