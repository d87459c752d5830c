"""/api/session: who am I, sign in, sign out."""

from typing import Any

from django.conf import settings
from django.contrib.auth import login, logout
from django.middleware.csrf import get_token
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.authentication import SessionAuthentication
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from tenants.api.errors import errors
from tenants.guessing import check_password
from tenants.models import Member, Role, User
from tenants.scope import unscoped


class SessionUserSerializer(serializers.Serializer[Any]):
    login = serializers.CharField()
    is_operator = serializers.BooleanField()


class MembershipTenantSerializer(serializers.Serializer[Any]):
    slug = serializers.CharField()
    name = serializers.CharField()


class MembershipSerializer(serializers.Serializer[Any]):
    tenant = MembershipTenantSerializer()
    role = serializers.ChoiceField(choices=Role.choices)


class SessionSerializer(serializers.Serializer[Any]):
    user = SessionUserSerializer(allow_null=True)
    memberships = MembershipSerializer(many=True)
    base_model = serializers.CharField()


class SignInSerializer(serializers.Serializer[Any]):
    login = serializers.CharField(max_length=150)
    password = serializers.CharField(max_length=1000, trim_whitespace=False)


class SessionView(APIView):
    """Every method is CSRF-protected, signing in as well.

    GET sets the cookie that the others need.
    """

    permission_classes = [AllowAny]
    authentication_classes = [SessionAuthentication]

    @extend_schema(operation_id="session_retrieve", responses=SessionSerializer)
    def get(self, request: Request) -> Response:
        get_token(request._request)
        return Response(session_of(request))

    @extend_schema(
        operation_id="session_create",
        request=SignInSerializer,
        responses={200: SessionSerializer, **errors(400, 401, 403, 429)},
    )
    def post(self, request: Request) -> Response:
        # DRF asks for the token of signed-in sessions only; signing in is worth forging too.
        SessionAuthentication().enforce_csrf(request)
        form = SignInSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        login(request._request, check_password(request._request, **form.validated_data))
        request.user = request._request.user
        return Response(session_of(request))

    @extend_schema(operation_id="session_destroy", responses={204: None, **errors(403)})
    def delete(self, request: Request) -> Response:
        logout(request._request)
        return Response(status=204)


def session_of(request: Request) -> dict[str, object]:
    user = request.user
    return {
        "user": {"login": user.get_username(), "is_operator": user.is_staff}
        if isinstance(user, User)
        else None,
        "memberships": memberships_of(user) if isinstance(user, User) else [],
        "base_model": settings.BASE_MODEL_NAME,
    }


def memberships_of(user: User) -> list[dict[str, object]]:
    # A person's own memberships are of many tenants.
    with unscoped():
        rows = Member.objects.filter(user=user, tenant__is_active=True).select_related("tenant")
        return [
            {"tenant": {"slug": row.tenant.slug, "name": row.tenant.name}, "role": row.role}
            for row in rows.order_by("tenant__slug")
        ]
