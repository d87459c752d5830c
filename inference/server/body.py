"""A request's body as one JSON object, or a clear refusal. All bounded."""

import asyncio
import json
from typing import Any, NoReturn

from aiohttp import ClientPayloadError, web

from inference.server.errors import HttpError
from inference.server.fields import Fields, invalid, wrong_type

MAX_BODY_BYTES = 8 << 20
MAX_DEPTH = 64
# A client that needs longer for 8 MiB is broken or hostile.
READ_TIMEOUT_S = 60.0


async def read_fields(request: web.Request) -> Fields:
    """Raises EngineError (400) or HttpError (408, 413)."""
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            raw = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        message = f"The request body is larger than the limit of {MAX_BODY_BYTES} bytes."
        raise HttpError(413, "request_too_large", message) from error
    except TimeoutError as error:
        message = f"The request body did not arrive within {READ_TIMEOUT_S:.0f} seconds."
        raise HttpError(408, "request_timeout", message) from error
    except (ClientPayloadError, web.RequestPayloadError) as error:
        raise invalid(None, "The request body is not encoded as its headers say.") from error
    return Fields(parse_object(raw))


def parse_object(raw: bytes) -> dict[str, Any]:
    if not raw.strip():
        raise invalid(None, "The request body is empty; expected a JSON object.")
    value = _parse(raw)
    if not isinstance(value, dict):
        raise wrong_type("body", "an object", value)
    _check_tree(value)
    return value


def _parse(raw: bytes) -> Any:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(None, f"The request body is not UTF-8 (byte {error.start}).") from error
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise invalid(
            None, f"The request body is not valid JSON: {error.msg} ({place})."
        ) from error
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        # int() refuses integers of more than 4300 digits.
        raise invalid(None, "The request body has a number that is too long.") from error


def _refuse_constant(name: str) -> NoReturn:
    raise invalid(None, f"The request body is not valid JSON: {name} is not a JSON value.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The gateway and the replica must never read two different values for one key."""
    values = dict(pairs)
    if len(values) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for number, key in enumerate(keys) if key in keys[:number])
        raise invalid(None, f"The request body has the key {twice[:100]!r} twice in one object.")
    return values


def _too_deep() -> Exception:
    return invalid(None, f"The request body is nested deeper than {MAX_DEPTH} levels.")


def _check_tree(root: dict[str, Any]) -> None:
    """Depth and characters; iterative, since the depth is the client's choice."""
    level: list[Any] = [root]
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return
        level = [child for node in level for child in _children(node)]
    raise _too_deep()


def _children(node: Any) -> list[Any]:
    if isinstance(node, dict):
        for key in node:
            _check_string(key)
        node = list(node.values())
    elif not isinstance(node, list):
        return []
    for value in node:
        if isinstance(value, str):
            _check_string(value)
    return [value for value in node if isinstance(value, dict | list)]


def _check_string(value: str) -> None:
    """JSON can spell half a surrogate pair; no tokenizer or UTF-8 stream can carry one."""
    if value.isascii():
        return
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise invalid(None, "The request body has a lone surrogate in a string.") from error
