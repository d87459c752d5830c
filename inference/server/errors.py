"""Errors as clients see them: OpenAI's envelope with its four keys, whatever went wrong."""

import json
import logging
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from inference.errors import EngineError

log = logging.getLogger(__name__)

# How a stream ended whose status was sent before: for the metrics.
OUTCOME = web.RequestKey("outcome", str)


class HttpError(Exception):
    """An error of HTTP itself, which no ErrorCode names: size, time, readiness."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers


def error_body(
    status: int, code: str, message: str, param: str | None = None
) -> dict[str, dict[str, str | None]]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def body_of(error: EngineError) -> dict[str, dict[str, str | None]]:
    return error_body(error.status, str(error.code), error.message, error.param)


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    body = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return web.Response(
        body=body, status=status, content_type="application/json", charset="utf-8", headers=headers
    )


@web.middleware
async def render_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except EngineError as error:
        return json_response(body_of(error), error.status)
    except HttpError as error:
        body = error_body(error.status, error.code, error.message)
        return json_response(body, error.status, error.headers)
    except web.HTTPMethodNotAllowed as error:
        return _method_not_allowed(request, error)
    except web.HTTPNotFound:
        message = f"Unknown path: {request.method} {request.path[:200]}"
        return json_response(error_body(404, "unknown_path", message), 404)
    except web.HTTPException as error:
        return json_response(error_body(error.status, "http_error", error.reason), error.status)
    except Exception:
        # The client gets no detail; the log gets all of it.
        log.exception("%s %s failed", request.method, request.path)
        message = "The server had an error while processing the request."
        return json_response(error_body(500, "internal_error", message), 500)


def _method_not_allowed(request: web.Request, error: web.HTTPMethodNotAllowed) -> web.Response:
    allowed = ", ".join(sorted(error.allowed_methods))
    message = f"Method {request.method} is not allowed for {request.path}; allowed: {allowed}."
    body = error_body(405, "method_not_allowed", message)
    return json_response(body, 405, {"Allow": allowed})
