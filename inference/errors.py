"""What can go wrong with a request or an adapter, named once.

Every error a client can meet carries an ErrorCode; the HTTP front maps it to a status
(STATUS_BY_CODE) and renders the OpenAI error shape. Asserts are for our own mistakes, never for a
client's input.
"""

from enum import StrEnum


class ErrorCode(StrEnum):
    INVALID_REQUEST = "invalid_request"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    MODEL_NOT_FOUND = "model_not_found"
    INVALID_ADAPTER = "invalid_adapter"
    ADAPTER_CONFLICT = "adapter_conflict"
    OVERLOADED = "overloaded"
    NON_FINITE_LOGITS = "non_finite_logits"
    INTERNAL = "internal_error"


STATUS_BY_CODE = {
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.UNSUPPORTED_PARAMETER: 400,
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: 400,
    ErrorCode.MODEL_NOT_FOUND: 404,
    ErrorCode.INVALID_ADAPTER: 400,
    ErrorCode.ADAPTER_CONFLICT: 409,
    ErrorCode.OVERLOADED: 503,
    ErrorCode.NON_FINITE_LOGITS: 500,
    ErrorCode.INTERNAL: 500,
}


class EngineError(Exception):
    """An error to answer one client with: code, message, and the request field at fault if any."""

    def __init__(self, code: ErrorCode, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param

    def __reduce__(self) -> tuple[type["EngineError"], tuple[ErrorCode, str, str | None]]:
        """Crosses from the engine's process to its front."""
        return EngineError, (self.code, self.message, self.param)

    @property
    def status(self) -> int:
        return STATUS_BY_CODE[self.code]
