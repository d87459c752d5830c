"""Imports from Hugging Face, below an adapter that need not exist yet."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from adapters.imports import access_import, begin_import
from adapters.models import Import, ImportStatus
from tenants.api.base import TenantView
from tenants.api.errors import errors
from tenants.api.parsers import JSONParser
from tenants.models import KeyScope


class NewImportSerializer(serializers.Serializer[Any]):
    repo_id = serializers.RegexField(r"^[\w.-]+(/[\w.-]+)?\Z", max_length=200)
    revision = serializers.CharField(max_length=200, required=False, default="main")
    token = serializers.CharField(
        max_length=500,
        required=False,
        default="",
        allow_blank=True,
        write_only=True,
        help_text="Of a private or gated repository. Kept nowhere.",
    )


class ImportSerializer(serializers.ModelSerializer[Import]):
    id = serializers.CharField(source="public_id", read_only=True)
    status = serializers.ChoiceField(choices=ImportStatus.choices, read_only=True)
    version = serializers.SerializerMethodField()

    class Meta:
        model = Import
        fields = [
            "id",
            "repo_id",
            "revision",
            "commit",
            "status",
            "error_code",
            "error",
            "version",
            "created_at",
        ]
        read_only_fields = fields

    def get_version(self, row: Import) -> int | None:
        return row.version.number if row.version else None


class ImportsView(TenantView):
    scope = KeyScope.ADAPTERS
    parser_classes = [JSONParser]

    @extend_schema(
        operation_id="imports_list",
        responses={200: ImportSerializer(many=True), **errors(401, 403, 404)},
    )
    def get(self, request: Request, tenant: str, name: str) -> Response:
        rows = Import.objects.filter(adapter_name=name).select_related("version")
        return self.paginated(rows, ImportSerializer)

    @extend_schema(
        operation_id="imports_create",
        request=NewImportSerializer,
        responses={202: ImportSerializer, **errors(400, 401, 403, 404)},
        description="Fetched in the background; then a version, checked as any upload is.",
    )
    def post(self, request: Request, tenant: str, name: str) -> Response:
        body = NewImportSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        fields = body.validated_data
        row = begin_import(
            self.principal, name, fields["repo_id"], fields["revision"], fields["token"], request
        )
        return Response(ImportSerializer(row).data, status=202)


class ImportView(TenantView):
    scope = KeyScope.ADAPTERS

    @extend_schema(
        operation_id="imports_retrieve",
        responses={200: ImportSerializer, **errors(401, 403, 404)},
    )
    def get(self, request: Request, tenant: str, name: str, import_id: str) -> Response:
        return Response(ImportSerializer(access_import(self.principal, name, import_id)).data)
