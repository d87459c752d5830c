"""/api/tenants/{t}/keys/: list, make, change, rotate, revoke."""

from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.base import TenantView
from tenants.api.errors import errors
from tenants.api.fields import LimitsSerializer, SetLimitsSerializer, take_limits
from tenants.auth import KEYS
from tenants.keys import (
    DEFAULT_OVERLAP,
    MAX_OVERLAP,
    NewKey,
    change_key,
    create_key,
    revoke_key,
    rotate_key,
)
from tenants.limits import LIMIT_COLUMNS
from tenants.models import ApiKey, KeyScope, KeyState

MAX_MODELS = 100


class KeySerializer(LimitsSerializer, serializers.ModelSerializer[ApiKey]):
    """A limit that is null is none of the key's own; the tenant's hold beside it."""

    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=KeyScope.choices), read_only=True
    )
    allowed_models = serializers.ListField(
        child=serializers.CharField(), read_only=True, help_text="Empty: all of the tenant's."
    )
    state = serializers.ChoiceField(
        choices=KeyState.choices,
        read_only=True,
        help_text="A key that was rotated is `replaced` until it expires.",
    )
    replaces = serializers.CharField(
        source="replaces.public_id",
        allow_null=True,
        read_only=True,
        help_text="The key that this one was rotated from.",
    )

    class Meta:
        model = ApiKey
        fields = [
            "public_id",
            "name",
            "scopes",
            "allowed_models",
            "state",
            "replaces",
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
    allowed_models = serializers.ListField(
        child=serializers.RegexField(
            r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}\Z",
            error_messages={
                "invalid": "Expected the name of an adapter, of an alias or of the base model."
            },
        ),
        required=False,
        max_length=MAX_MODELS,
        help_text="What the key may ask for: adapters, with all their versions and aliases; single "
        "aliases; the base model. A name that there is not is refused. Empty or left out: "
        "everything.",
    )
    expires_at = serializers.DateTimeField(required=False, allow_null=True)

    def validate_expires_at(self, value: datetime | None) -> datetime | None:
        if value is not None and value <= timezone.now():
            raise serializers.ValidationError("Expected a moment in the future.", code="past")
        return value


class RotateKeySerializer(serializers.Serializer[Any]):
    overlap_s = serializers.IntegerField(
        min_value=0,
        max_value=int(MAX_OVERLAP.total_seconds()),
        default=int(DEFAULT_OVERLAP.total_seconds()),
        help_text="How long the old key goes on working.",
    )


def shown_once(made: NewKey) -> Response:
    return Response({**KeySerializer(made.row).data, "secret": made.raw}, status=201)


class KeyListView(TenantView):
    scope = KEYS

    @extend_schema(
        operation_id="keys_list",
        responses={200: KeySerializer(many=True), **errors(401, 403, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        """Newest first, the revoked ones too."""
        return self.paginated(
            ApiKey.objects.select_related("replaces", "replaced_by"), KeySerializer
        )

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
        return shown_once(create_key(self.principal, request=request, limits=limits, **fields))


class KeyView(TenantView):
    scope = KEYS

    @extend_schema(
        operation_id="keys_update",
        request=MakeKeySerializer,
        responses={200: KeySerializer, **errors(400, 401, 403, 404, 409)},
    )
    def patch(self, request: Request, tenant: str, public_id: str) -> Response:
        """Change what is named. It holds everywhere within a second."""
        form = MakeKeySerializer(data=request.data, partial=True)
        form.is_valid(raise_exception=True)
        row = change_key(self.principal, public_id, form.validated_data, request=request)
        return Response(KeySerializer(row).data)

    @extend_schema(operation_id="keys_destroy", responses={204: None, **errors(401, 403, 404)})
    def delete(self, request: Request, tenant: str, public_id: str) -> Response:
        """Revoke the key. It stays listed, and is refused everywhere within a second."""
        revoke_key(self.principal, public_id, request=request)
        return Response(status=204)


class KeyRotateView(TenantView):
    scope = KEYS

    @extend_schema(
        operation_id="keys_rotate",
        request=RotateKeySerializer,
        responses={201: NewKeySerializer, **errors(400, 401, 403, 404, 409)},
    )
    def post(self, request: Request, tenant: str, public_id: str) -> Response:
        """Make a key with the same rights and limits; the old one expires after the overlap.

        Limits are counted over both.
        """
        form = RotateKeySerializer(data=request.data)
        form.is_valid(raise_exception=True)
        overlap = timedelta(seconds=form.validated_data["overlap_s"])
        return shown_once(rotate_key(self.principal, public_id, overlap, request=request))
