"""/api/tenants/{t}/audit/: who did what."""

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.base import TenantView
from tenants.api.errors import errors
from tenants.models import AuditEvent, KeyScope


class AuditSerializer(serializers.ModelSerializer[AuditEvent]):
    before = serializers.DictField(allow_null=True, read_only=True)
    after = serializers.DictField(allow_null=True, read_only=True)

    class Meta:
        model = AuditEvent
        fields = ["at", "actor", "role", "action", "target", "before", "after", "ip"]
        read_only_fields = fields


class AuditListView(TenantView):
    scope = KeyScope.ADMIN

    @extend_schema(
        operation_id="audit_list",
        responses={200: AuditSerializer(many=True), **errors(401, 403, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        """Newest first."""
        return self.paginated(AuditEvent.objects.all(), AuditSerializer)
