"""Tells a house that this replica is there, again and again: no settings need to name it."""

import asyncio
import logging

import aiohttp

from inference.config import Announcement

log = logging.getLogger(__name__)

INTERVAL_S = 10.0
TIMEOUT = aiohttp.ClientTimeout(total=5)
PATH = "/api/fleet/announce/"


async def announce_forever(announcement: Announcement) -> None:
    """Until cancelled. A house that is away or refuses is logged when that changes: the replica
    serves whom it served.
    """
    said = ""
    headers = {"authorization": f"Bearer {announcement.token}"}
    async with aiohttp.ClientSession(timeout=TIMEOUT, headers=headers) as session:
        while True:
            now = await announce(session, announcement)
            if now != said:
                log.info("announced to %s: %s", announcement.house, now)
            said = now
            await asyncio.sleep(INTERVAL_S)


async def announce(session: aiohttp.ClientSession, announcement: Announcement) -> str:
    """What came of it, in a line."""
    body = {"url": announcement.own_url, "engine": "grafthouse"}
    try:
        async with session.post(announcement.house + PATH, json=body) as response:
            text = await response.text()
            return "taken" if response.status == 200 else f"{response.status} {text[:300]}"
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
