"""Who may read a generation on a WebSocket, by which name, and how."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from tenants.auth import Principal
from tenants.errors import ApiError

# The process that holds it, and its own.
NAME = re.compile(r"([0-9a-f]{8})-[0-9a-f]{32}")


@dataclass(frozen=True)
class Owner:
    """Who alone may read it: the tenant, by the same key or as the same member."""

    tenant_id: int
    key_id: int | None
    user_id: int | None


def owner_of(principal: Principal) -> Owner:
    return Owner(principal.tenant_id, principal.key_id, principal.user_id)


def not_found() -> ApiError:
    """For one that is absent, over, or another's: nobody learns which."""
    message = "There is no such generation, or it is no longer kept."
    return ApiError("generation_not_found", 404, message, param="generation")


def holder_of(name: str) -> str:
    """The process that made the name. Raises ApiError 404 for a name that none has made."""
    if (found := NAME.fullmatch(name)) is None:
        raise not_found()
    return found[1]


class Reader(Protocol):
    """A socket's hold on a generation; leave() at the end."""

    name: str
    is_resumable: bool

    async def pull(self, after: int) -> list[bytes]:
        """Some of the frames behind that number, up to which all have been read, once there are
        any; none at the end. ApiError 409 once another reader has taken over.
        """

    def cancel(self) -> None: ...

    def leave(self) -> None: ...


async def frames_of(reader: Reader, after: int) -> AsyncIterator[bytes]:
    """Those behind that number, until the last; tapes.as_text() makes them the client's."""
    while found := await reader.pull(after):
        for frame in found:
            yield frame
        after += len(found)
