"""Over how many replicas each digest's requests go now.

No clock of its own: callers pass the time, so that the simulator drives it too. What replicas
report is of all web processes together, a second old; what this process has in flight is exact, and
all there is of engines that report no numbers. The larger of the two counts.
"""

from collections import Counter
from collections.abc import Sequence

from adapters.rendezvous import Spread, num_wanted, spread
from gateway.router import Snapshot, mean_load, takers

# Digests at one replica are forgotten once so many are known.
MAX_ENTRIES = 10_000


class Spreads:
    def __init__(self) -> None:
        self._num_open: Counter[str] = Counter()
        self._spreads: dict[str, Spread] = {}

    def num_replicas(self, digest: str, fleet: Sequence[Snapshot], now_s: float) -> int:
        """For a request about to be sent, which is counted with the others."""
        open_to_work = takers(fleet)
        num_reported = sum(one.num_requests.get(digest, 0) for one in open_to_work)
        num_requests = max(num_reported, self._num_open[digest]) + 1
        wanted = num_wanted(num_requests, mean_load(open_to_work))
        after = spread(self._spreads.get(digest, Spread()), wanted, now_s)
        self._make_room(now_s)
        self._spreads[digest] = after
        return after.num_replicas

    def opened(self, digest: str | None) -> None:
        if digest is not None:
            self._num_open[digest] += 1

    def closed(self, digest: str | None) -> None:
        if digest is None:
            return
        self._num_open[digest] -= 1
        if not self._num_open[digest]:
            del self._num_open[digest]

    def _make_room(self, now_s: float) -> None:
        if len(self._spreads) < MAX_ENTRIES:
            return
        spread_out = {d: s for d, s in self._spreads.items() if s.num_replicas > 1}
        kept = {d: s for d, s in spread_out.items() if now_s < s.keep_until_s}
        self._spreads = kept if len(kept) < MAX_ENTRIES else {}
