"""The operator's view: replicas, their health and load, what lies where; and which take no work."""

from typing import Any

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.permissions import IsAdminUser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from adapters import drain, registry
from adapters.api.serializers import (
    AdapterSerializer,
    FleetEventSerializer,
    ReplicaSerializer,
    with_counts,
)
from adapters.keeping import set_keep
from adapters.models import Adapter, FleetEvent, Keep, Replica
from tenants.api.errors import errors
from tenants.api.pagination import Pagination
from tenants.api.parsers import JSONParser
from tenants.audit import Actor
from tenants.models import Tenant
from tenants.scope import tenant_scope


class FleetView(APIView):
    permission_classes = [IsAdminUser]
    pagination_class = Pagination

    @extend_schema(
        operation_id="fleet_list",
        responses={200: ReplicaSerializer(many=True), **errors(401, 403)},
    )
    def get(self, request: Request) -> Response:
        pagination = self.pagination_class()
        rows = Replica.objects.prefetch_related("placements")
        page = pagination.paginate_queryset(rows, request, view=self)
        return pagination.get_paginated_response(ReplicaSerializer(page, many=True).data)


class FleetEventsView(APIView):
    permission_classes = [IsAdminUser]
    pagination_class = Pagination

    @extend_schema(
        operation_id="fleet_events",
        responses={200: FleetEventSerializer(many=True), **errors(401, 403)},
        description="What operators did to the fleet, newest first.",
    )
    def get(self, request: Request) -> Response:
        pagination = self.pagination_class()
        page = pagination.paginate_queryset(FleetEvent.objects.all(), request, view=self)
        return pagination.get_paginated_response(FleetEventSerializer(page, many=True).data)


class AnnouncementSerializer(serializers.Serializer[Any]):
    url = serializers.CharField(max_length=300, help_text="http(s)://host:port, as seen from here.")
    engine = serializers.CharField(max_length=40, default="grafthouse")


class AnnouncedSerializer(serializers.Serializer[Any]):
    url = serializers.CharField()
    forget_after_s = serializers.IntegerField(
        help_text="One that is silent for so long, and says nothing of itself, is forgotten."
    )


class AnnounceView(APIView):
    # Neither a key nor a session: the token that replicas share with the house.
    authentication_classes = ()
    permission_classes = ()
    parser_classes = [JSONParser]

    @extend_schema(
        operation_id="fleet_announce",
        request=AnnouncementSerializer,
        responses={200: AnnouncedSerializer, **errors(400, 401, 403, 409)},
        description="A replica says that it is there, with REPLICA_TOKEN as its bearer token; "
        "within seconds it gets adapters and requests. To be said again now and then.",
    )
    def post(self, request: Request) -> Response:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        registry.require_token(token.strip() if scheme.lower() == "bearer" else "")
        body = AnnouncementSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = registry.register(body.validated_data["url"], body.validated_data["engine"])
        seconds = int(registry.FORGET_AFTER.total_seconds())
        return Response({"url": row.url, "forget_after_s": seconds})


class DrainView(APIView):
    permission_classes = [IsAdminUser]

    @extend_schema(
        operation_id="fleet_drain",
        request=None,
        responses={200: ReplicaSerializer, **errors(401, 403, 404)},
        description="It takes nothing new within a second and ends what it runs.",
    )
    def post(self, request: Request, replica_id: int) -> Response:
        return set_draining(request, replica_id, True)


class ResumeView(APIView):
    permission_classes = [IsAdminUser]

    @extend_schema(
        operation_id="fleet_resume",
        request=None,
        responses={200: ReplicaSerializer, **errors(401, 403, 404)},
        description="It takes work again.",
    )
    def post(self, request: Request, replica_id: int) -> Response:
        return set_draining(request, replica_id, False)


def set_draining(request: Request, replica_id: int, is_draining: bool) -> Response:
    replica = get_object_or_404(Replica, id=replica_id)
    replica = drain.set_draining(replica.id, is_draining, request.user.get_username())
    return Response(ReplicaSerializer(replica).data)


class NewKeepSerializer(serializers.Serializer[Any]):
    keep = serializers.ChoiceField(choices=Keep.choices)


class KeepView(APIView):
    permission_classes = [IsAdminUser]
    parser_classes = [JSONParser]

    @extend_schema(
        operation_id="fleet_keep",
        request=NewKeepSerializer,
        responses={200: AdapterSerializer, **errors(400, 401, 403, 404)},
        description="How near to the device replicas keep the adapter's active version: pinned "
        "there, warm in host memory, or no. Replicas of other engines cannot.",
    )
    def put(self, request: Request, tenant: str, name: str) -> Response:
        body = NewKeepSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        owner = get_object_or_404(Tenant, slug=tenant)
        actor = Actor(owner.id, "operator", user_id=request.user.id)
        with tenant_scope(owner.id):
            adapter = get_object_or_404(Adapter, name=name)
            set_keep(actor, adapter, Keep(body.validated_data["keep"]), request)
            row = with_counts(Adapter.objects.filter(id=adapter.id)).get()
            return Response(AdapterSerializer(row).data)
