"""Every error below /api: {"error": {"code", "message", "details": [...]}}."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from django.core.exceptions import ObjectDoesNotExist, PermissionDenied
from django.core.signals import got_request_exception
from django.db import DataError
from django.http import Http404
from rest_framework import exceptions, serializers
from rest_framework.response import Response

from tenants.errors import ApiError

log = logging.getLogger(__name__)

CODE_BY_STATUS = {
    400: "invalid_request",
    401: "not_authenticated",
    403: "permission_denied",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    413: "too_large",
    415: "unsupported_media_type",
    429: "rate_limit_exceeded",
}


class ErrorBodySerializer(serializers.Serializer[Any]):
    code = serializers.CharField()
    message = serializers.CharField()
    details = serializers.ListField(child=serializers.DictField())


class ErrorSerializer(serializers.Serializer[Any]):
    """The shape of every error."""

    error = ErrorBodySerializer()


def errors(*statuses: int) -> dict[int, type[ErrorSerializer]]:
    """For @extend_schema(responses={200: …, **errors(401, 404)})."""
    return dict.fromkeys(statuses, ErrorSerializer)


def exception_handler(exc: Exception, context: Mapping[str, Any]) -> Response:
    exc = from_django(exc)
    if isinstance(exc, ApiError):
        return render(exc.status, exc.code, exc.message, exc.details, exc.headers)
    if isinstance(exc, exceptions.APIException):
        return render_drf(exc)
    log.error("unexpected error below /api", exc_info=exc)
    # Whoever watches for crashes (Django's test client does) still learns of it.
    got_request_exception.send(sender=None, request=context["request"]._request)
    return render(500, "internal_error", "The server failed; the failure was logged.")


def from_django(exc: Exception) -> Exception:
    """What Django raises for a client's doing, as DRF says it; all else as it is."""
    if isinstance(exc, Http404):
        return exceptions.NotFound()
    if isinstance(exc, PermissionDenied):
        return exceptions.PermissionDenied(str(exc) or None)
    if isinstance(exc, ObjectDoesNotExist):
        # It was found when the request began: someone deleted it since.
        log.warning("gone while it was asked for: %s", exc)
        return exceptions.NotFound()
    if isinstance(exc, DataError):
        # PostgreSQL's word on what no column holds, wherever in a request it stood.
        log.warning("a value that no column holds: %s", exc)
        return exceptions.ParseError(
            "A value cannot be looked up or kept: expected text without NUL, numbers in range."
        )
    return exc


def render(
    status: int,
    code: str,
    message: str,
    details: list[dict[str, Any]] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    body = {"error": {"code": code, "message": message, "details": details or []}}
    return Response(body, status=status, headers=dict(headers or {}))


def render_drf(exc: exceptions.APIException) -> Response:
    headers = {}
    if auth_header := getattr(exc, "auth_header", None):
        headers["WWW-Authenticate"] = auth_header
    if wait := getattr(exc, "wait", None):
        headers["Retry-After"] = str(int(wait))
    code = CODE_BY_STATUS.get(exc.status_code, "error")
    if isinstance(exc, exceptions.ValidationError):
        details = list(flatten(exc.detail, ""))
        message = "; ".join(f"{d['field']}: {d['message']}" for d in details)
        return render(exc.status_code, code, message, details, headers)
    return render(exc.status_code, code, str(exc.detail), headers=headers)


def flatten(detail: Any, field: str) -> Iterator[dict[str, Any]]:
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            yield from flatten(inner, f"{field}.{name}" if field else str(name))
    elif isinstance(detail, list):
        for index, inner in enumerate(detail):
            nested = isinstance(inner, Mapping)
            yield from flatten(inner, f"{field}[{index}]" if nested else field)
    else:
        yield {"field": field, "code": detail.code, "message": str(detail)}
