"""kill -9 at seeded moments: at random ones, and just after a version was seen in work."""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import requests

from tests.e2e.chaos.watch import WORKING, RowWatch
from tests.e2e.house import process_ids

WORDS = {
    "web": ("uvicorn gateway.asgi",),
    "worker": ("celery -A gateway worker",),
    "replica": ("-m inference serve",),
    "worker and web": ("celery -A gateway worker", "uvicorn gateway.asgi"),
    "worker and replica": ("celery -A gateway worker", "-m inference serve"),
    "worker and beat": ("celery -A gateway",),
}
# Once all that was killed is back: the house works in between, or there is nothing to kill.
MAX_PAUSE_S = 5.0
AIM_S = 3.0


@dataclass
class Killer:
    """Each kind in turn, the order drawn anew each time round.

    urls: of what answers when web and replica are back. kills: how often each was hit.
    """

    var_dir: Path
    urls: Sequence[str]
    rows: RowWatch
    rng: random.Random
    kills: Counter[str] = field(default_factory=Counter)

    def run(self, is_over: threading.Event) -> None:
        kinds: list[str] = []
        while not is_over.wait(self.rng.uniform(0, MAX_PAUSE_S)):
            if not all(map(_is_back, self.urls)):
                continue
            kinds = kinds or self.rng.sample(list(WORDS), len(WORDS))
            what = kinds.pop()
            found = [one for words in WORDS[what] for one in process_ids(self.var_dir, words)]
            if self.rng.random() < 0.7:
                self._aim(self.rng.choice(WORKING))
                time.sleep(self.rng.uniform(0, 0.1))
            for process_id in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGKILL)
            self.kills[what] += bool(found)

    def _aim(self, state: str) -> None:
        """Until a version is in this state, but not for ever."""
        deadline = time.monotonic() + AIM_S
        while not self.rows.working.get(state) and time.monotonic() < deadline:
            time.sleep(0.005)


def _is_back(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).ok
    except requests.RequestException:
        return False
