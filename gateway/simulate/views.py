"""What a simulated gateway knows of its fleet: reports a second old, and what it has sent since."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.router import Snapshot, current_load


@dataclass
class Sent:
    """Requests of this gateway that run now, and that ran when the replica last reported."""

    now: int = 0
    at_report: int = 0
    num_reported: int = 0


class Views:
    """As `gateway.replicas` keeps them, less the sockets."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._sent = {url: Sent() for url in urls}
        self._snapshots = {url: Snapshot(url, True, frozenset(), 0, 0) for url in urls}

    def fleet(self) -> list[Snapshot]:
        return list(self._snapshots.values())

    def send(self, url: str, change: int) -> None:
        """change: 1 when a request goes out, -1 when it ends."""
        self._sent[url].now += change
        self._snapshots[url] = self._snapshots[url]._replace(load=self._load(url))

    def mark_down(self, url: str) -> None:
        self._snapshots[url] = self._snapshots[url]._replace(is_ready=False)

    def report(self, found: Snapshot) -> None:
        """found: what the replica says; its load is that of all gateways together."""
        sent = self._sent[found.url]
        sent.num_reported, sent.at_report = found.load, sent.now
        self._snapshots[found.url] = found._replace(load=self._load(found.url))

    def _load(self, url: str) -> int:
        sent = self._sent[url]
        return current_load(sent.num_reported, sent.now, sent.at_report)
