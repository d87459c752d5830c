"""Adapters and their versions. Views parse, call and answer; publish and activation act."""

from typing import Any

from django.conf import settings
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from adapters import publish
from adapters.access import access_adapter, access_version, own_adapters
from adapters.activation import begin_activation
from adapters.api.serializers import (
    AdapterSerializer,
    NewAdapterSerializer,
    UploadSerializer,
    VersionSerializer,
    with_counts,
)
from adapters.api.uploads import QuarantineHandler, require_complete
from adapters.models import Adapter, AdapterVersion
from adapters.retire import retire_adapter, retire_version
from tenants.api.base import TenantView
from tenants.api.errors import errors
from tenants.api.parsers import JSONParser
from tenants.models import KeyScope, Tenant


def version_answer(version: AdapterVersion, status: int = 200) -> Response:
    return Response(VersionSerializer(version).data, status=status)


class AdaptersView(TenantView):
    scope = KeyScope.ADAPTERS
    parser_classes = [JSONParser]

    @extend_schema(
        operation_id="adapters_list",
        responses={200: AdapterSerializer(many=True), **errors(401, 403, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        return self.paginated(with_counts(own_adapters(self.principal)), AdapterSerializer)

    @extend_schema(
        operation_id="adapters_create",
        request=NewAdapterSerializer,
        responses={201: AdapterSerializer, **errors(400, 401, 403, 404, 409)},
    )
    def post(self, request: Request, tenant: str) -> Response:
        body = NewAdapterSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        fields = body.validated_data
        made = publish.create_adapter(
            self.principal, fields["name"], fields["description"], request
        )
        return Response(AdapterSerializer(self.counted(made)).data, status=201)

    def counted(self, adapter: Adapter) -> Adapter:
        return with_counts(own_adapters(self.principal)).get(id=adapter.id)


class AdapterView(TenantView):
    scope = KeyScope.ADAPTERS

    @extend_schema(
        operation_id="adapters_retrieve",
        responses={200: AdapterSerializer, **errors(401, 403, 404)},
    )
    def get(self, request: Request, tenant: str, name: str) -> Response:
        adapter = access_adapter(self.principal, name)
        row = with_counts(own_adapters(self.principal)).get(id=adapter.id)
        return Response(AdapterSerializer(row).data)

    @extend_schema(operation_id="adapters_destroy", responses={204: None, **errors(401, 403, 404)})
    def delete(self, request: Request, tenant: str, name: str) -> Response:
        publish.delete_adapter(self.principal, access_adapter(self.principal, name), request)
        return Response(status=204)


class VersionsView(TenantView):
    scope = KeyScope.ADAPTERS
    parser_classes = [MultiPartParser]
    upload: QuarantineHandler | None = None

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> HttpResponseBase:
        # Before authentication: checking a session's CSRF token parses the body already.
        if request.method == "POST":
            self.upload = QuarantineHandler(settings.MAX_UPLOAD_BYTES)
            request.upload_handlers = [self.upload]
        try:
            return super().dispatch(request, *args, **kwargs)
        finally:
            if self.upload is not None:
                self.upload.discard()

    @extend_schema(
        operation_id="versions_list",
        responses={200: VersionSerializer(many=True), **errors(401, 403, 404)},
    )
    def get(self, request: Request, tenant: str, name: str) -> Response:
        adapter = access_adapter(self.principal, name)
        return self.paginated(adapter.versions.all(), VersionSerializer)

    @extend_schema(
        operation_id="versions_create",
        request={"multipart/form-data": UploadSerializer},
        responses={201: VersionSerializer, **errors(400, 401, 403, 404, 409, 413, 415)},
        description="Uploads a version; an adapter that does not exist yet is made. "
        "Validation runs in the background: watch `state`.",
    )
    def post(self, request: Request, tenant: str, name: str) -> Response:
        plan = Tenant.objects.select_related("plan").get(id=self.principal.tenant_id).plan
        upload = self.upload or QuarantineHandler(0)
        upload.max_bytes = min(upload.max_bytes, plan.max_upload_bytes)
        # Reading the files is what runs the handler, unless the CSRF check did.
        _ = request.FILES
        require_complete(upload, plan.max_upload_bytes)
        version = publish.upload(self.principal, name, upload.token, request, upload.num_bytes)
        # The row owns the quarantine from here on.
        self.upload = None
        return version_answer(version, 201)


class VersionView(TenantView):
    scope = KeyScope.ADAPTERS

    @extend_schema(
        operation_id="versions_retrieve",
        responses={200: VersionSerializer, **errors(401, 403, 404)},
    )
    def get(self, request: Request, tenant: str, name: str, number: int) -> Response:
        return version_answer(access_version(self.principal, name, number))

    @extend_schema(
        operation_id="versions_destroy",
        responses={204: None, **errors(401, 403, 404, 409)},
        description="Not while it is active or activating. Its number is not given again.",
    )
    def delete(self, request: Request, tenant: str, name: str, number: int) -> Response:
        version = access_version(self.principal, name, number)
        publish.delete_version(self.principal, version, request)
        return Response(status=204)


class ActivateView(TenantView):
    scope = KeyScope.ADAPTERS

    @extend_schema(
        operation_id="versions_activate",
        request=None,
        responses={202: VersionSerializer, **errors(401, 403, 404, 409)},
        description="Active once its replicas hold it; until then the former version serves. "
        "Rolling back is activating an older version.",
    )
    def post(self, request: Request, tenant: str, name: str, number: int) -> Response:
        version = access_version(self.principal, name, number)
        return version_answer(begin_activation(self.principal, version, request), 202)


class RetireView(TenantView):
    scope = KeyScope.ADAPTERS

    @extend_schema(
        operation_id="versions_retire",
        request=None,
        responses={200: VersionSerializer, **errors(401, 403, 404, 409)},
        description="Served no more; its bytes stay until it is deleted, and activating it brings "
        "it back. Not while it is active, activating, a canary, or an alias is pinned to it.",
    )
    def post(self, request: Request, tenant: str, name: str, number: int) -> Response:
        version = access_version(self.principal, name, number)
        return version_answer(retire_version(self.principal, version, request))


class AdapterRetireView(TenantView):
    scope = KeyScope.ADAPTERS

    @extend_schema(
        operation_id="adapters_retire",
        request=None,
        responses={200: AdapterSerializer, **errors(401, 403, 404, 409)},
        description="With all its versions, an active one too: requests by its name get a 404 that "
        "says so. Activating a version brings the adapter back.",
    )
    def post(self, request: Request, tenant: str, name: str) -> Response:
        retire_adapter(self.principal, access_adapter(self.principal, name), request)
        row = with_counts(own_adapters(self.principal)).get(name=name)
        return Response(AdapterSerializer(row).data)


class RetryView(TenantView):
    scope = KeyScope.ADAPTERS

    @extend_schema(
        operation_id="versions_retry",
        request=None,
        responses={202: VersionSerializer, **errors(401, 403, 404, 409)},
        description="A failed version tries again what failed: validation or activation.",
    )
    def post(self, request: Request, tenant: str, name: str, number: int) -> Response:
        version = access_version(self.principal, name, number)
        return version_answer(publish.retry(self.principal, version, request), 202)
