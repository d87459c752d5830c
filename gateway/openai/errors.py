"""ApiError → OpenAI's error shape: always four keys.

The only place where /v1 and /ws/v1 render errors.
"""

from typing import Any

import orjson

from tenants.denials import retry_headers
from tenants.errors import ApiError

MAX_MESSAGE_CHARS = 2000


def error_object(error: ApiError) -> dict[str, Any]:
    return {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }


def error_body(error: ApiError) -> bytes:
    return orjson.dumps({"error": error_object(error)})


def internal_error() -> ApiError:
    """For what we did not foresee: logged where it is caught, never described to a client."""
    return ApiError(
        code="internal_error",
        status=500,
        message="The server had an error while processing your request.",
        type="server_error",
    )


def unavailable(code: str, message: str, retry_after_s: int = 1) -> ApiError:
    return ApiError(
        code=code,
        status=503,
        message=message,
        type="server_error",
        headers=retry_headers(retry_after_s * 1000),
    )


def from_upstream(status: int, found: dict[str, Any] | None) -> ApiError:
    """A replica's error object as ours: its four keys where they are well formed, its status kept
    for 4xx.
    """
    if not 400 <= status < 500 or found is None:
        return internal_error()
    message, type_, param, code = (found.get(key) for key in ("message", "type", "param", "code"))
    return ApiError(
        code=code if isinstance(code, str) else "invalid_request",
        status=status,
        message=str(message)[:MAX_MESSAGE_CHARS],
        # Other engines name their exceptions here.
        type=str(type_) if str(type_).endswith("_error") else "invalid_request_error",
        param=param if isinstance(param, str) else None,
    )


def from_frame(found: dict[str, Any]) -> ApiError:
    """An error object that a replica sent inside its stream. Some have a status for a code."""
    kind, code = str(found.get("type")).lower(), found.get("code")
    is_its_own = kind.endswith(("server_error", "servererror"))
    if is_its_own and not isinstance(code, str):
        return internal_error()
    error = from_upstream(400, found)
    if is_its_own:
        error.status, error.type = 500, "server_error"
    return error
