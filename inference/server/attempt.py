"""Which request of its sender's this is, and which attempt at it.

Headers, as with whose turn it takes: the body belongs to the client. Our own ids are others, so two
senders that give one id never meet in the engine.
"""

import re
from dataclasses import dataclass

from aiohttp import web

from inference.server.fields import invalid

REQUEST_ID = "X-Request-Id"
NUMBER = "X-Request-Attempt"
MAX_ATTEMPTS = 1000
# An id that is harmless: it is echoed.
HARMLESS = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")


@dataclass(frozen=True)
class Attempt:
    """number: 1 for the first; of one that was lost, another replica may be asked to answer."""

    request_id: str
    number: int = 1


def read_id(request: web.Request) -> str | None:
    """None where there is none, or none that is harmless."""
    value = request.headers.get(REQUEST_ID, "")
    return value if HARMLESS.match(value) else None


def read_attempt(request: web.Request) -> Attempt | None:
    """Raises EngineError INVALID_REQUEST for a number that is none."""
    request_id = read_id(request)
    text = request.headers.get(NUMBER, "1")
    # isdecimal alone takes other scripts' digits.
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_ATTEMPTS))
    if not is_number or not 1 <= int(text) <= MAX_ATTEMPTS:
        message = f"'{NUMBER}' must be a whole number from 1 to {MAX_ATTEMPTS}: {text[:40]!r}."
        raise invalid(NUMBER, message)
    return None if request_id is None else Attempt(request_id, int(text))
