"""Which replica serves a digest: pure, so that tests and simulations drive the code that production
runs.

Rendezvous hashing over the residents: when a replica leaves, only what it served moves. Bounded
load: the first choice is passed over while it carries more than its share. Ties are broken by URL,
so every web process agrees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

# A replica may carry this much more than the mean before its adapters overflow to their next
# choice.
LOAD_FACTOR = 1.25
# With many replicas the mean is near zero; a handful of requests is never a reason to move.
MIN_BOUND = 4


@dataclass(frozen=True)
class Snapshot:
    """What is known of one replica now.

    load: requests running, waiting, and sent since it last reported.
    """

    url: str
    is_ready: bool
    digests: frozenset[str]
    load: int
    max_model_len: int


def score(key: str, url: str) -> int:
    """A pseudo-random weight of the pair, the same in every process and on every machine."""
    return int.from_bytes(blake2b(f"{key}\0{url}".encode(), digest_size=8).digest(), "big")


def rank(digest: str | None, salt: str, snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """All replicas that may serve, best first: the ready residents of the digest, or any ready one
    for the base.

    The base goes by load; salt (the tenant) breaks its ties, so that a quiet fleet keeps a tenant's
    prefixes together.
    """
    ready = [one for one in snapshots if one.is_ready and (digest is None or digest in one.digests)]
    key = salt if digest is None else digest
    by_hash = sorted(ready, key=lambda one: (-score(key, one.url), one.url))
    if digest is None:
        return sorted(by_hash, key=lambda one: one.load)
    bound = load_bound(ready)
    # sorted() is stable: below the bound in hash order, then the overloaded ones by load.
    return sorted(by_hash, key=lambda one: one.load if one.load >= bound else -1)


def load_bound(snapshots: Sequence[Snapshot]) -> float:
    num_requests = sum(one.load for one in snapshots) + 1
    return max(MIN_BOUND, LOAD_FACTOR * num_requests / max(1, len(snapshots)))
