"""/api/tenants/{t}/keys/: list, make, revoke."""

from datetime import datetime

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.base import TenantView
from tenants.api.errors import errors
from tenants.api.fields import LimitsSerializer, SetLimitsSerializer, take_limits
from tenants.auth import KEYS
from tenants.keys import create_key, revoke_key
from tenants.limits import LIMIT_COLUMNS
from tenants.models import ApiKey, KeyScope


class KeySerializer(LimitsSerializer, serializers.ModelSerializer[ApiKey]):
    """A limit that is null is none of the key's own; the tenant's hold beside it."""

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
            *LIMIT_COLUMNS,
        ]
        read_only_fields = fields


class NewKeySerializer(KeySerializer):
    secret = serializers.CharField(help_text="The whole key, gh-…. It is shown here only.")

    class Meta(KeySerializer.Meta):
        fields = [*KeySerializer.Meta.fields, "secret"]


class MakeKeySerializer(SetLimitsSerializer):
    """A limit that is null or left out is none of the key's own."""

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
        fields = form.validated_data
        limits = take_limits(fields)
        made = create_key(self.principal, request=request, limits=limits, **fields)
        return Response({**KeySerializer(made.row).data, "secret": made.raw}, status=201)


class KeyView(TenantView):
    scope = KEYS

    @extend_schema(operation_id="keys_destroy", responses={204: None, **errors(401, 403, 404)})
    def delete(self, request: Request, tenant: str, public_id: str) -> Response:
        """Revoke the key. It stays listed, and is refused everywhere within a second."""
        revoke_key(self.principal, public_id, request=request)
        return Response(status=204)
