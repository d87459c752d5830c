"""Uploads in parts: the views at /api, and what they share with /v1 (gateway.openai.uploads)."""

from typing import Any

from django.conf import settings
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from adapters import upload_parts, uploads
from adapters.api.upload_serializers import (
    CompleteSerializer,
    NewUploadSerializer,
    PartDataSerializer,
    PartQuerySerializer,
    PartSerializer,
    UploadStateSerializer,
    part_json,
    upload_json,
)
from adapters.api.uploads import PartHandler
from adapters.models import Upload, UploadStatus
from tenants.api.base import TenantView
from tenants.api.errors import errors
from tenants.api.parsers import JSONParser
from tenants.auth import Principal
from tenants.models import KeyScope


def upload_answer(upload: Upload, status: int = 200) -> Response:
    return Response(upload_json(upload, settings.MAX_PART_BYTES), status=status)


def open_upload(principal: Principal, request: Request) -> Response:
    body = NewUploadSerializer(data=request.data)
    body.is_valid(raise_exception=True)
    fields = body.validated_data
    announced = uploads.Announced(
        fields["filename"], fields["bytes"], fields["purpose"], fields["adapter"]
    )
    return upload_answer(uploads.open_upload(principal, announced, request))


def complete_upload(principal: Principal, request: Request, upload_id: str) -> Response:
    body = CompleteSerializer(data=request.data)
    body.is_valid(raise_exception=True)
    upload = uploads.access_upload(principal, upload_id)
    fields = body.validated_data
    done = uploads.complete_upload(
        principal, upload, fields.get("part_ids"), fields.get("md5"), request
    )
    return upload_answer(done)


class PartReceiver(APIView):
    """Mixin: the part of a POST lies in quarantine before anyone asks who sent it."""

    part: PartHandler | None = None

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> HttpResponseBase:
        # Before authentication: checking a session's CSRF token parses the body already.
        if request.method == "POST":
            self.part = PartHandler(settings.MAX_PART_BYTES)
            request.upload_handlers = [self.part]
        try:
            return super().dispatch(request, *args, **kwargs)
        finally:
            if self.part is not None:
                # A part that was kept has left it.
                self.part.discard()

    def add_part(self, principal: Principal, request: Request, upload_id: str) -> Response:
        query = PartQuerySerializer(data=request.query_params)
        query.is_valid(raise_exception=True)
        upload = uploads.access_upload(principal, upload_id)
        # Reading the files is what runs the handler, unless the CSRF check did.
        _ = request.FILES
        arrived = (self.part or PartHandler(0)).arrived()
        upload_parts.require_checksum(arrived, query.validated_data.get("sha256"))
        number = query.validated_data.get("number")
        part = upload_parts.add_part(principal, upload, number, arrived)
        return Response(part_json(part, upload))


class UploadsView(TenantView):
    scope = KeyScope.ADAPTERS
    parser_classes = [JSONParser]

    @extend_schema(
        operation_id="uploads_list",
        responses={200: UploadStateSerializer(many=True), **errors(401, 403, 404)},
        description="The open ones, newest first: what can be resumed.",
    )
    def get(self, request: Request, tenant: str) -> Response:
        rows = Upload.objects.filter(status=UploadStatus.PENDING).prefetch_related("parts")
        pagination = self.pagination_class()
        page = pagination.paginate_queryset(rows, request, view=self)
        listed = [upload_json(one, settings.MAX_PART_BYTES) for one in page or ()]
        return pagination.get_paginated_response(listed)

    @extend_schema(
        operation_id="uploads_create",
        request=NewUploadSerializer,
        responses={200: UploadStateSerializer, **errors(400, 401, 403, 404, 413)},
    )
    def post(self, request: Request, tenant: str) -> Response:
        return open_upload(self.principal, request)


class UploadView(TenantView):
    scope = KeyScope.ADAPTERS

    @extend_schema(
        operation_id="uploads_retrieve",
        responses={200: UploadStateSerializer, **errors(401, 403, 404)},
        description="With the parts that have arrived: where to go on after a drop.",
    )
    def get(self, request: Request, tenant: str, upload_id: str) -> Response:
        return upload_answer(uploads.access_upload(self.principal, upload_id))


class UploadPartsView(PartReceiver, TenantView):
    scope = KeyScope.ADAPTERS
    parser_classes = [MultiPartParser]

    @extend_schema(
        operation_id="uploads_add_part",
        parameters=[PartQuerySerializer],
        request={"multipart/form-data": PartDataSerializer},
        responses={200: PartSerializer, **errors(400, 401, 403, 404, 409, 413, 415)},
    )
    def post(self, request: Request, tenant: str, upload_id: str) -> Response:
        return self.add_part(self.principal, request, upload_id)


class UploadCompleteView(TenantView):
    scope = KeyScope.ADAPTERS
    parser_classes = [JSONParser]

    @extend_schema(
        operation_id="uploads_complete",
        request=CompleteSerializer,
        responses={200: UploadStateSerializer, **errors(400, 401, 403, 404, 409)},
        description="Makes a version, as a whole upload does; watch `version.state`.",
    )
    def post(self, request: Request, tenant: str, upload_id: str) -> Response:
        return complete_upload(self.principal, request, upload_id)


class UploadCancelView(TenantView):
    scope = KeyScope.ADAPTERS

    @extend_schema(
        operation_id="uploads_cancel",
        request=None,
        responses={200: UploadStateSerializer, **errors(401, 403, 404, 409)},
    )
    def post(self, request: Request, tenant: str, upload_id: str) -> Response:
        upload = uploads.access_upload(self.principal, upload_id)
        return upload_answer(uploads.cancel_upload(self.principal, upload, request))
