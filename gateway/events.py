"""/ws/v1/events: what happens in one tenant, for its pages. docs/sockets.md has the frames."""

import contextlib
import logging
from typing import Any

from redis.exceptions import RedisError

from gateway.openai.http import ClientGone
from gateway.openai.schema import bad_request, text_field
from gateway.sockets import BAD_FRAME, NOT_AUTHENTICATED, TRY_AGAIN, JsonSocket, principal_of
from tenants.errors import ApiError
from tenants.events import group_name

log = logging.getLogger(__name__)


class EventsConsumer(JsonSocket):
    """What happens in one tenant, to a signed-in member of it."""

    kind = "events"
    _group = ""

    async def take(self, frame: dict[str, Any]) -> None:
        if frame.get("type") == "ping" and self._group:
            # Membership of a group expires after a day; an open page pings.
            await self._join()
        if frame.get("type") != "auth":
            await super().take(frame)
            return
        tenant = text_field(frame, "tenant")
        if tenant is None or self._group:
            raise bad_request("the first frame, and no other, is of type auth and names a tenant")
        principal = await self.identify(self.visitor(tenant))
        self._group = group_name(principal.tenant_id)
        if await self._join():
            await self.write({"type": "ready"})
        else:
            await self.refuse(TRY_AGAIN, "events are not to be had now")

    async def _join(self) -> bool:
        try:
            await self.channel_layer.group_add(self._group, self.channel_name)
        except (RedisError, OSError) as error:
            log.warning("an events socket is in no group: %s", error)
            return False
        return True

    async def disconnect(self, code: int) -> None:
        await super().disconnect(code)
        if self._group:
            with contextlib.suppress(RedisError, OSError):
                await self.channel_layer.group_discard(self._group, self.channel_name)

    async def layer_gap(self, message: dict[str, Any]) -> None:
        """The store was away: the group may be gone with it, and what was told to it."""
        if not self._group:
            return
        if await self._join():
            await self._tell({"type": "missed"})
        else:
            await self.refuse(TRY_AGAIN, "events are not to be had now")

    async def tenant_event(self, message: dict[str, Any]) -> None:
        """From tenants.events by the channel layer. A member removed meanwhile gets no more."""
        await self._tell({"type": "event", "event": message["event"], "data": message["data"]})

    async def _tell(self, frame: dict[str, Any]) -> None:
        assert self.caller is not None
        try:
            await principal_of(self.runtime, self.caller)
            await self.write(frame)
        except ApiError as error:
            await self.refuse(NOT_AUTHENTICATED, error.message)
        except ClientGone:
            await self.refuse(BAD_FRAME, "gone")
