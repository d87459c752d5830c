"""The serving profile of one version."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from adapters.access import access_version
from adapters.models import AdapterVersion
from adapters.profile import RULES, check_profile, set_profile
from adapters.template import require_template
from tenants.api.base import TenantView
from tenants.api.errors import errors
from tenants.api.parsers import JSONParser
from tenants.models import KeyScope


# What the schema shows; the rules are adapters.profile's.
class ProfileSerializer(serializers.Serializer[Any]):
    """null, or left out, is "not set"."""

    system_prompt = serializers.CharField(
        required=False,
        allow_null=True,
        help_text="Sent first when the request's messages have no system message.",
    )
    chat_template = serializers.CharField(
        required=False,
        allow_null=True,
        help_text="Jinja, in place of the base model's own. It is tried before it is kept.",
    )
    stop = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        allow_null=True,
        help_text="Added to the request's own.",
    )
    max_tokens = serializers.IntegerField(required=False, allow_null=True)
    temperature = serializers.FloatField(required=False, allow_null=True)
    top_p = serializers.FloatField(required=False, allow_null=True)
    top_k = serializers.IntegerField(required=False, allow_null=True)
    min_p = serializers.FloatField(required=False, allow_null=True)
    repetition_penalty = serializers.FloatField(required=False, allow_null=True)
    frequency_penalty = serializers.FloatField(required=False, allow_null=True)
    presence_penalty = serializers.FloatField(required=False, allow_null=True)
    seed = serializers.IntegerField(required=False, allow_null=True)


def profile_answer(version: AdapterVersion) -> Response:
    return Response({name: version.profile.get(name) for name in RULES})


class ProfileView(TenantView):
    scope = KeyScope.ADAPTERS
    parser_classes = [JSONParser]

    @extend_schema(
        operation_id="profile_retrieve",
        responses={200: ProfileSerializer, **errors(401, 403, 404)},
        description="What requests for this version are filled in with where they say nothing.",
    )
    def get(self, request: Request, tenant: str, name: str, number: int) -> Response:
        return profile_answer(access_version(self.principal, name, number))

    @extend_schema(
        operation_id="profile_update",
        request=ProfileSerializer,
        responses={200: ProfileSerializer, **errors(400, 401, 403, 404, 503)},
        description="The whole profile: what is left out is not set. It holds within a second.",
    )
    def put(self, request: Request, tenant: str, name: str, number: int) -> Response:
        version = access_version(self.principal, name, number)
        values = check_profile(request.data)
        require_template(values)
        set_profile(self.principal, version, values, request)
        return profile_answer(version)

    @extend_schema(operation_id="profile_destroy", responses={204: None, **errors(401, 403, 404)})
    def delete(self, request: Request, tenant: str, name: str, number: int) -> Response:
        version = access_version(self.principal, name, number)
        set_profile(self.principal, version, {}, request)
        return Response(status=204)
