"""Two web processes over one database and one store, and a client that asks the other one all the
while.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from subprocess import Popen

import redis
import requests

from tests.gateway.live import Web, wait_for

PERIOD_S = 0.01
FOLLOWED = "grafthouse_invalidations_followed"


@dataclass(frozen=True)
class Pair:
    """Where things are changed, and where they must act."""

    here: Web
    there: Web
    store: Popen[bytes]
    store_url: str

    def control(self) -> redis.Redis:
        return redis.Redis.from_url(self.store_url)


@dataclass
class Poll:
    """GET /v1/models a hundred times a second: when each began, and its status."""

    url: str
    raw: str
    seen: list[tuple[float, int]] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        with requests.Session() as session:
            session.headers["authorization"] = f"Bearer {self.raw}"
            while not self.is_over.is_set():
                began = time.time()
                status = session.get(f"{self.url}/v1/models", timeout=30).status_code
                self.seen.append((began, status))
                time.sleep(max(0.0, began + PERIOD_S - time.time()))

    def num(self, status: int) -> int:
        return sum(one == status for _, one in self.seen)

    def last(self, status: int) -> float:
        return max(began for began, one in self.seen if one == status)


@contextmanager
def polled(pair: Pair, raw: str) -> Iterator[Poll]:
    """Asked all the while, and first until it was accepted twenty times."""
    poll = Poll(pair.there.url, raw)
    thread = threading.Thread(target=poll.run)
    thread.start()
    try:
        wait_for("accepted requests", lambda: poll.num(200) >= 20)
        yield poll
    finally:
        poll.is_over.set()
        thread.join(30)


def seen_refused(poll: Poll) -> bool:
    return poll.num(401) >= 3
