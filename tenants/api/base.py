"""The door to everything below /api/tenants/{t}/.

A view there inherits TenantView, its route names the tenant `<slug:tenant>`, and it says which
scope it takes. When its method runs, self.principal is known and the tenant's scope is open.
`scope` is the KeyScope (or "keys") that the view is about. A safe method takes it or any
membership; an unsafe one takes it only. 401 without credentials, 404 for strangers and for
absent tenants alike, 403 for the wrong role or scope. Describe a view where the schema shows it:
in the docstring of its method. tests/tenants/test_wall.py finds every such route and knocks as a
stranger.
"""

from contextlib import ExitStack
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http.response import HttpResponseBase
from rest_framework.exceptions import NotAuthenticated
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.views import APIView

from tenants.api.pagination import Pagination
from tenants.auth import READ, Principal, principal_for_member, require_scope
from tenants.errors import ApiError
from tenants.scope import tenant_scope


class TenantView(APIView):
    scope: ClassVar[str] = "admin"
    pagination_class = Pagination
    principal: Principal

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> HttpResponseBase:
        with ExitStack() as self.open_scope:
            return super().dispatch(request, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        self.principal = access_tenant(request, kwargs["tenant"])
        safe = request.method in SAFE_METHODS
        require_scope(self.principal, self.scope, *([READ] if safe else []))
        self.open_scope.enter_context(tenant_scope(self.principal.tenant_id))

    def paginated(self, rows: QuerySet[Any], serializer: type[BaseSerializer[Any]]) -> Response:
        """One page of rows as {"count", "next", "previous", "results"}."""
        pagination = self.pagination_class()
        page = pagination.paginate_queryset(rows, self.request, view=self)
        return pagination.get_paginated_response(serializer(page, many=True).data)


def access_tenant(request: Request, slug: str) -> Principal:
    if isinstance(request.auth, Principal):
        if request.auth.tenant_slug != slug:
            raise ApiError("not_found", 404, f"There is no tenant '{slug}' that you belong to.")
        return request.auth
    if request.user.id is None:
        raise NotAuthenticated
    return principal_for_member(request.user.id, slug)
