"""The operator's view: replicas, their health and load, and what lies where."""

from drf_spectacular.utils import extend_schema
from rest_framework.permissions import IsAdminUser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from adapters.api.serializers import ReplicaSerializer
from adapters.models import Replica
from tenants.api.errors import errors
from tenants.api.pagination import Pagination


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
