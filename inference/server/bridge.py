"""From the engine's news to asyncio: a burst of events crosses by one wake-up of the loop.

Ownership: a Mailbox belongs to one HTTP request; every engine request that posts into it is aborted
by Generation.close (generation.py), and events that come later are dropped.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from inference.errors import EngineError
from inference.request import AdapterInfo, EngineState, Event, GenerateRequest

Posted = tuple[int, Event | EngineError]


class ServingEngine(Protocol):
    """What the front needs of an engine. All of it is called from other threads than the loop's."""

    def submit(
        self, request: GenerateRequest, on_event: Callable[[Event | EngineError], None]
    ) -> None:
        """A refusal is raised, or comes as an EngineError in place of events."""
        ...

    def abort(self, request_id: str) -> None: ...

    def load_adapter(self, name: str, path: str, pinned: bool = False) -> AdapterInfo: ...

    def unload_adapter(self, name: str) -> None: ...

    def resolve_adapter(self, name: str) -> str: ...

    def state(self) -> EngineState: ...


class Mailbox:
    """The events of one HTTP request, in order; read by one task."""

    def __init__(self) -> None:
        self._posted: deque[Posted] = deque()
        self._has_news = asyncio.Event()

    def put(self, number: int, event: Event | EngineError) -> None:
        self._posted.append((number, event))
        self._has_news.set()

    async def take(self) -> list[Posted]:
        """All that came since the last call; waits for at least one."""
        await self._has_news.wait()
        self._has_news.clear()
        news = list(self._posted)
        self._posted.clear()
        return news


class Bridge:
    """Created in the event loop's thread; post may be called from any."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._crossing: deque[tuple[Mailbox, int, Event | EngineError]] = deque()
        self._is_waking = False
        self._open: set[Mailbox] = set()

    @property
    def num_open(self) -> int:
        """HTTP requests that generate now."""
        return len(self._open)

    def open(self) -> Mailbox:
        mailbox = Mailbox()
        self._open.add(mailbox)
        return mailbox

    def close(self, mailbox: Mailbox) -> None:
        self._open.discard(mailbox)

    def post(self, mailbox: Mailbox, number: int, event: Event | EngineError) -> None:
        self._crossing.append((mailbox, number, event))
        if not self._is_waking:
            self._is_waking = True
            self._loop.call_soon_threadsafe(self._deliver)

    def fail_all(self, error: EngineError) -> None:
        """Ends every open request with error: the engine died, or the grace time is over."""
        for mailbox in self._open:
            mailbox.put(0, error)

    def _deliver(self) -> None:
        # Before emptying: a post in between wakes the loop once more, which is harmless.
        self._is_waking = False
        while self._crossing:
            mailbox, number, event = self._crossing.popleft()
            if mailbox in self._open:
                mailbox.put(number, event)
