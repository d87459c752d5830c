"""Aliases: second names, of an adapter or of one of its versions."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from adapters.access import access_adapter
from adapters.aliases import access_alias, create_alias, delete_alias, point_alias
from adapters.models import ModelName
from adapters.names import own_aliases
from tenants.api.base import TenantView
from tenants.api.errors import errors
from tenants.api.parsers import JSONParser
from tenants.models import KeyScope


class TargetSerializer(serializers.Serializer[Any]):
    adapter = serializers.CharField(max_length=200)
    version = serializers.IntegerField(
        required=False,
        default=None,
        allow_null=True,
        min_value=1,
        max_value=10**9,
        help_text="The number it is pinned to; null follows the active version.",
    )


class NewAliasSerializer(TargetSerializer):
    # The name's rule is publish.check_name's, which says what was wrong with it.
    name = serializers.CharField(max_length=200)


class AliasSerializer(serializers.ModelSerializer[ModelName]):
    adapter = serializers.CharField(source="adapter.name", read_only=True)
    version = serializers.SerializerMethodField()

    class Meta:
        model = ModelName
        fields = ["name", "adapter", "version", "created_by", "created_at"]

    def get_version(self, alias: ModelName) -> int | None:
        return alias.version.number if alias.version else None


class AliasesView(TenantView):
    scope = KeyScope.ADAPTERS
    parser_classes = [JSONParser]

    @extend_schema(
        operation_id="aliases_list",
        parameters=[OpenApiParameter("adapter", str, description="Of this adapter only.")],
        responses={200: AliasSerializer(many=True), **errors(401, 403, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        rows = own_aliases()
        if name := request.query_params.get("adapter"):
            rows = rows.filter(adapter=access_adapter(self.principal, name))
        return self.paginated(rows, AliasSerializer)

    @extend_schema(
        operation_id="aliases_create",
        request=NewAliasSerializer,
        responses={201: AliasSerializer, **errors(400, 401, 403, 404, 409)},
        description="A pinned version is served from now on, and not deleted while it is.",
    )
    def post(self, request: Request, tenant: str) -> Response:
        body = NewAliasSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        fields = body.validated_data
        adapter = access_adapter(self.principal, fields["adapter"])
        alias = create_alias(self.principal, fields["name"], adapter, fields["version"], request)
        return Response(AliasSerializer(alias).data, status=201)


class AliasView(TenantView):
    scope = KeyScope.ADAPTERS
    parser_classes = [JSONParser]

    @extend_schema(
        operation_id="aliases_retrieve",
        responses={200: AliasSerializer, **errors(401, 403, 404)},
    )
    def get(self, request: Request, tenant: str, alias: str) -> Response:
        return Response(AliasSerializer(access_alias(alias)).data)

    @extend_schema(
        operation_id="aliases_update",
        request=TargetSerializer,
        responses={200: AliasSerializer, **errors(400, 401, 403, 404, 409)},
        description="Points it to another adapter or version, within a second.",
    )
    def put(self, request: Request, tenant: str, alias: str) -> Response:
        row = access_alias(alias)
        body = TargetSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        fields = body.validated_data
        adapter = access_adapter(self.principal, fields["adapter"])
        point_alias(self.principal, row, adapter, fields["version"], request)
        return Response(AliasSerializer(row).data)

    @extend_schema(operation_id="aliases_destroy", responses={204: None, **errors(401, 403, 404)})
    def delete(self, request: Request, tenant: str, alias: str) -> Response:
        delete_alias(self.principal, access_alias(alias), request)
        return Response(status=204)
