"""/v1/uploads: OpenAI's uploads in parts, by Django's machinery with OpenAI's errors.

Bodies are large and the work is rows and files, so it goes to Django in a thread of the request's
own. The key is asked for before: who has none has nothing spooled. Chat shares the loop with it
only while chunks go from the socket to disk.
"""

import logging
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import ExitStack
from typing import Any

from django.http.response import HttpResponseBase
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import NotAuthenticated
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request as DrfRequest
from rest_framework.response import Response
from rest_framework.views import APIView

from adapters import uploads
from adapters.api.upload_parts import PartReceiver, complete_upload, open_upload, upload_answer
from gateway.body_limit import App, bounded
from gateway.openai.app import observe, principal_of
from gateway.openai.errors import error_object, internal_error
from gateway.openai.http import Receive, Request, Scope, Send
from gateway.runtime import runtime_of
from tenants.api.authentication import KeyAuthentication
from tenants.api.errors import exception_handler
from tenants.api.parsers import JSONParser
from tenants.auth import Principal, require_scope
from tenants.errors import ApiError
from tenants.models import KeyScope
from tenants.scope import tenant_scope

log = logging.getLogger(__name__)

PREFIX = "/v1/uploads"


def is_upload_path(path: str) -> bool:
    return path == PREFIX or path.startswith(f"{PREFIX}/")


async def app(django: App, scope: Scope, receive: Receive, send: Send) -> None:
    runtime, request = runtime_of(scope), Request(scope, receive, send)
    request.route = "uploads"
    try:
        if request.method == "OPTIONS":
            await request.answer_options("GET, HEAD, POST, OPTIONS")
            return
        require_scope(await principal_of(runtime, request), KeyScope.ADAPTERS)
        # One spelling: doubled and trailing slashes are common in base URLs.
        tidy = {**scope, "path": request.path, "raw_path": request.path.encode()}
        await bounded(django, tidy, receive, _with_headers(request, send))
    except ApiError as error:
        await request.answer_error(error)
    finally:
        observe(runtime, request)


def _with_headers(request: Request, send: Send) -> Send:
    added = [(name.encode(), value.encode()) for name, value in request.answer_headers.items()]

    async def both(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            request.status = message["status"]
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return both


def openai_error(exc: Exception, context: Mapping[str, Any]) -> Response:
    """What /api would answer, in OpenAI's shape."""
    if not isinstance(exc, ApiError):
        exc = _as_api_error(exception_handler(exc, context))
    return Response(
        {"error": error_object(exc)}, status=exc.status, headers=dict(exc.headers or {})
    )


def _as_api_error(answer: Response) -> ApiError:
    if answer.status_code >= 500:
        return internal_error()
    found = answer.data["error"]
    details = found["details"]
    param = details[0]["field"] if details else None
    return ApiError(found["code"], answer.status_code, found["message"], param=param)


class KeyView(APIView):
    """A view of the key's tenant, with the adapters scope: reading as well."""

    authentication_classes = [KeyAuthentication]
    principal: Principal

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> HttpResponseBase:
        with ExitStack() as self.open_scope:
            return super().dispatch(request, *args, **kwargs)

    def initial(self, request: DrfRequest, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if not isinstance(request.auth, Principal):
            raise NotAuthenticated
        self.principal = request.auth
        require_scope(self.principal, KeyScope.ADAPTERS)
        self.open_scope.enter_context(tenant_scope(self.principal.tenant_id))

    def get_exception_handler(self) -> Callable[..., Response]:
        return openai_error


@extend_schema(exclude=True)
class UploadsView(KeyView):
    parser_classes = [JSONParser]

    def post(self, request: DrfRequest) -> Response:
        return open_upload(self.principal, request)


@extend_schema(exclude=True)
class UploadView(KeyView):
    def get(self, request: DrfRequest, upload_id: str) -> Response:
        return upload_answer(uploads.access_upload(self.principal, upload_id))


@extend_schema(exclude=True)
class PartsView(PartReceiver, KeyView):
    parser_classes = [MultiPartParser]

    def post(self, request: DrfRequest, upload_id: str) -> Response:
        return self.add_part(self.principal, request, upload_id)


@extend_schema(exclude=True)
class CompleteView(KeyView):
    parser_classes = [JSONParser]

    def post(self, request: DrfRequest, upload_id: str) -> Response:
        return complete_upload(self.principal, request, upload_id)


@extend_schema(exclude=True)
class CancelView(KeyView):
    def post(self, request: DrfRequest, upload_id: str) -> Response:
        upload = uploads.access_upload(self.principal, upload_id)
        return upload_answer(uploads.cancel_upload(self.principal, upload, request))


@extend_schema(exclude=True)
class NotFoundView(KeyView):
    def get(self, request: DrfRequest, **rest: str) -> Response:
        method, where = request.method, request.path[:200]
        raise ApiError("not_found", 404, f"Unknown path: {method} {where}.")

    post = put = patch = delete = get


urlpatterns = [
    path("uploads", UploadsView.as_view()),
    path("uploads/<str:upload_id>", UploadView.as_view()),
    path("uploads/<str:upload_id>/parts", PartsView.as_view()),
    path("uploads/<str:upload_id>/complete", CompleteView.as_view()),
    path("uploads/<str:upload_id>/cancel", CancelView.as_view()),
    path("uploads/<path:rest>", NotFoundView.as_view()),
]
