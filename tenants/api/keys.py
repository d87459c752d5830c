"""/api/tenants/{t}/keys/: list, make, revoke."""

from datetime import datetime
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.base import TenantView
from tenants.api.errors import errors
from tenants.auth import KEYS
from tenants.keys import create_key, revoke_key
from tenants.models import ApiKey, KeyScope


class KeySerializer(serializers.ModelSerializer[ApiKey]):
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=KeyScope.choices), read_only=True
    )

    class Meta:
        model = ApiKey
        fields = [
            "public_id",
            "name",
            "scopes",
            "created_at",
            "last_used_at",
            "expires_at",
            "revoked_at",
        ]
        read_only_fields = fields


class NewKeySerializer(KeySerializer):
    secret = serializers.CharField(help_text="The whole key, gh-…. It is shown here only.")

    class Meta(KeySerializer.Meta):
        fields = [*KeySerializer.Meta.fields, "secret"]


class MakeKeySerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=80)
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=KeyScope.choices), allow_empty=False
    )
    expires_at = serializers.DateTimeField(required=False, allow_null=True)

    def validate_expires_at(self, value: datetime | None) -> datetime | None:
        if value is not None and value <= timezone.now():
            raise serializers.ValidationError("Expected a moment in the future.", code="past")
        return value


class KeyListView(TenantView):
    scope = KEYS

    @extend_schema(
        operation_id="keys_list",
        responses={200: KeySerializer(many=True), **errors(401, 403, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        """Newest first, the revoked ones too."""
        return self.paginated(ApiKey.objects.all(), KeySerializer)

    @extend_schema(
        operation_id="keys_create",
        request=MakeKeySerializer,
        responses={201: NewKeySerializer, **errors(400, 401, 403, 404)},
    )
    def post(self, request: Request, tenant: str) -> Response:
        """Make a key. Its secret is in this answer and nowhere else."""
        form = MakeKeySerializer(data=request.data)
        form.is_valid(raise_exception=True)
        made = create_key(self.principal, request=request, **form.validated_data)
        return Response({**KeySerializer(made.row).data, "secret": made.raw}, status=201)


class KeyView(TenantView):
    scope = KEYS

    @extend_schema(operation_id="keys_destroy", responses={204: None, **errors(401, 403, 404)})
    def delete(self, request: Request, tenant: str, public_id: str) -> Response:
        """Revoke the key. It stays listed, and is refused everywhere within a second."""
        revoke_key(self.principal, public_id, request=request)
        return Response(status=204)
