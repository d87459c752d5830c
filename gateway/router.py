"""Which replica serves a request: pure, so that tests and the simulator drive the code that
production runs. The order of replicas and their number per digest are `adapters.rendezvous`'s,
which placement asks too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from adapters.rendezvous import ranked, ranked_for

# A replica may carry this much more than the fleet's mean before its adapters overflow. Digests
# with several homes keep to the mean, and so even the fleet out; 1.25 here moved three times as
# many of the others, each for a swap, and evened out nothing more (gateway/LOG.md).
LOAD_FACTOR = 1.4
# With many replicas the mean is near zero; a handful of requests is never a reason to move.
MIN_BOUND = 4


class Snapshot(NamedTuple):
    """What is known of one replica now. A tuple: each request makes one of every replica.

    digests: what it holds in any tier; on_device: what of it needs no copy first. load: requests
    running, waiting, and sent since it last reported; num_requests: of those it reported, by
    digest. is_draining: takes no new work. doubted: of what it answered, lately, with another
    version than was asked for; None is the base.
    """

    url: str
    is_ready: bool
    digests: frozenset[str]
    load: int
    max_model_len: int
    on_device: frozenset[str] = frozenset()
    num_requests: Mapping[str, int] = MappingProxyType({})
    is_draining: bool = False
    doubted: frozenset[str | None] = frozenset()


@dataclass(frozen=True)
class Wish:
    """What a request asks of the router.

    digest: None for the base. prefix: equal for requests that share the beginning of their prompt,
    in one cache namespace. num_replicas: over how many the digest is spread now.
    """

    digest: str | None
    prefix: str = ""
    num_replicas: int = 1


def current_load(num_reported: int, num_sent: int, num_sent_at_report: int) -> int:
    """The report already counts what this process had open then; what came and went since is its
    own to know.
    """
    return max(0, num_reported + num_sent - num_sent_at_report, num_sent)


def takers(fleet: Sequence[Snapshot]) -> list[Snapshot]:
    """The replicas that take new work."""
    return [one for one in fleet if one.is_ready and not one.is_draining]


def mean_load(fleet: Sequence[Snapshot]) -> float:
    """Per replica, with the request that is about to be sent."""
    return (sum(one.load for one in fleet) + 1) / max(1, len(fleet))


def rank(wish: Wish, fleet: Sequence[Snapshot]) -> list[Snapshot]:
    """All replicas that may serve, best first: those that hold the digest, or any for the base."""
    open_to_work = takers(fleet)
    if wish.digest is None:
        return _by_load(wish.prefix, [one for one in open_to_work if None not in one.doubted])
    mean = mean_load(open_to_work)
    holders = _holders(wish.digest, open_to_work) or _leaving(wish.digest, fleet)
    order = [holders[url] for url in ranked_for(wish.digest, frozenset(holders))]
    homes, others = order[: wish.num_replicas], order[wish.num_replicas :]
    if len(homes) > 1:
        homes = _within(wish.prefix, homes, max(MIN_BOUND, mean))
    # Of those that are no home, one that an earlier overflow has paid for is the cheapest.
    others.sort(key=lambda one: wish.digest not in one.on_device)
    bound = max(MIN_BOUND, LOAD_FACTOR * mean)
    # sorted() is stable: below the bound as they stand, then the overloaded ones by load.
    return sorted([*homes, *others], key=lambda one: one.load if one.load >= bound else -1)


def _holders(digest: str, fleet: Sequence[Snapshot]) -> dict[str, Snapshot]:
    trusted = (one for one in fleet if digest not in one.doubted)
    return {one.url: one for one in trusted if digest in one.digests}


def _leaving(digest: str, fleet: Sequence[Snapshot]) -> dict[str, Snapshot]:
    """Who drains and holds it goes on with it until placement has put it on one that stays. None
    where none stays: then nothing is waited for.
    """
    if not takers(fleet):
        return {}
    return _holders(digest, [one for one in fleet if one.is_ready and one.is_draining])


def _by_load(prefix: str, takers: Sequence[Snapshot]) -> list[Snapshot]:
    by_url = {one.url: one for one in takers}
    by_hash = [by_url[url] for url in ranked(prefix, by_url)]
    return sorted(by_hash, key=lambda one: one.load)


def _within(prefix: str, homes: Sequence[Snapshot], enough: float) -> list[Snapshot]:
    """A prefix stays where its KV blocks are while that replica has no more than enough; the
    digests that have several homes are what evens the fleet out, so beyond it the load decides.
    """
    by_url = {one.url: one for one in homes}
    by_hash = [by_url[url] for url in ranked(prefix, by_url)]
    return sorted(by_hash, key=lambda one: one.load if one.load >= enough else -1)
