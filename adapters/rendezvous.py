"""Which replicas a digest belongs to, and how many: pure, and asked by placement and routing alike.

Rendezvous hashing: each replica has a pseudo-random weight for each digest, and the digest belongs
to the heaviest. When a replica leaves, only what it had moves, each digest to its own next one.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

# One replica of a digest for so much of a mean replica's requests: what is more makes whole
# replicas hot, and is what can be moved to even the fleet out at the cost of one slot more.
MAX_SHARE = 0.25
# A quiet fleet's mean is near zero; a handful of requests is no reason to spread.
MIN_REQUESTS = 4
# A digest keeps its replicas for so long after it last needed them: a pause between two bursts
# costs no swap.
KEEP_S = 60.0


def score(key: str, url: str) -> int:
    """The pair's weight, the same in every process and on every machine."""
    return int.from_bytes(blake2b(f"{key}\0{url}".encode(), digest_size=8).digest(), "big")


def ranked(key: str, urls: Iterable[str]) -> list[str]:
    """All of urls, heaviest first; ties are broken by URL, so every process agrees."""
    return sorted(urls, key=lambda url: (-score(key, url), url))


# A hundred replicas are a hundred hashes: too many for each request, and a digest's order changes
# only with the fleet.
@lru_cache(maxsize=32_768)
def ranked_for(digest: str, urls: frozenset[str]) -> tuple[str, ...]:
    return tuple(ranked(digest, urls))


def num_wanted(num_requests: int, mean: float) -> int:
    """How many replicas a digest's requests in flight need. mean: all requests, per replica."""
    return max(1, math.ceil(num_requests / max(MIN_REQUESTS, MAX_SHARE * mean)))


@dataclass(frozen=True)
class Spread:
    """Over how many replicas a digest's requests go, and until when at least."""

    num_replicas: int = 1
    keep_until_s: float = 0.0


def spread(before: Spread, num_wanted: int, now_s: float) -> Spread:
    """Grows at once, shrinks one by one when a replica was not needed for KEEP_S."""
    if num_wanted >= before.num_replicas:
        return Spread(num_wanted, now_s + KEEP_S)
    if now_s < before.keep_until_s:
        return before
    return Spread(before.num_replicas - 1, now_s + KEEP_S)
