"""The one error that a client may meet.

The gateway renders it in OpenAI's shape, tenants.api in that of /api.
"""

from collections.abc import Mapping, Sequence
from typing import Any


class ApiError(Exception):
    """code: stable, for programs; message: for people, names what was wrong and what was expected.

    type and param are OpenAI's fields of the same name; headers go out with the answer; details is
    /api's list of single problems.
    """

    def __init__(
        self,
        code: str,
        status: int,
        message: str,
        type: str = "invalid_request_error",
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        details: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.headers = dict(headers or {})
        self.details = [dict(detail) for detail in details]

    def __reduce__(self) -> tuple[Any, ...]:
        """Whole, where it goes to another process: the message alone would make none again."""
        given = (self.code, self.status, self.message, self.type, self.param)
        return (ApiError, (*given, self.headers, self.details))

    def __repr__(self) -> str:
        return f"ApiError({self.code!r}, {self.status}, {self.message!r})"
