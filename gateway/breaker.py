"""A replica that answers its polls but fails its requests takes no new ones for a while.

Pure: the time and the jitter are given. Closed while all is well; open after NUM_FAILURES lost
requests in a row; then half-open: one request at a time tries it, and its first token closes it.
"""

from dataclasses import dataclass, replace
from enum import IntEnum

NUM_FAILURES = 3
# Doubled with every opening that no whole answer came between.
MIN_OPEN_S = 1.0
MAX_OPEN_S = 30.0


class State(IntEnum):
    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


@dataclass(frozen=True)
class Breaker:
    """num_failures: in a row. num_openings: since the last whole answer; 0 is closed.

    is_tried: a request is out to see whether it answers again.
    """

    num_failures: int = 0
    num_openings: int = 0
    is_open: bool = False
    retry_at_s: float = 0.0
    is_tried: bool = False


def state(breaker: Breaker, now_s: float) -> State:
    if not breaker.is_open:
        return State.CLOSED
    return State.HALF_OPEN if now_s >= breaker.retry_at_s else State.OPEN


def takes_work(breaker: Breaker, now_s: float) -> bool:
    found = state(breaker, now_s)
    return found is State.CLOSED or (found is State.HALF_OPEN and not breaker.is_tried)


def sent(breaker: Breaker) -> Breaker:
    """A request goes there, to try it if it is open."""
    if breaker.is_tried == breaker.is_open:
        return breaker
    return replace(breaker, is_tried=breaker.is_open)


def failed(breaker: Breaker, now_s: float, jitter: float) -> Breaker:
    """A request was lost. jitter: 0 to 1, so that many gateways do not come back as one."""
    if breaker.is_open and not breaker.is_tried:
        # Of those that were under way when it opened: no news.
        return breaker
    num_failures = breaker.num_failures + 1
    if num_failures < NUM_FAILURES and not breaker.is_open:
        return replace(breaker, num_failures=num_failures)
    return tripped(replace(breaker, num_failures=num_failures), now_s, jitter)


def tripped(breaker: Breaker, now_s: float, jitter: float) -> Breaker:
    """Open, whatever came before."""
    longest_s = min(MAX_OPEN_S, MIN_OPEN_S * 2.0**breaker.num_openings)
    return Breaker(
        breaker.num_failures,
        breaker.num_openings + 1,
        is_open=True,
        retry_at_s=now_s + longest_s * (1 + jitter) / 2,
    )


def answered(breaker: Breaker) -> Breaker:
    """A first token came: the next requests may come, but one more failure opens it again."""
    if not breaker.is_tried:
        return breaker
    return replace(breaker, num_failures=NUM_FAILURES - 1, is_open=False, is_tried=False)


def left(breaker: Breaker) -> Breaker:
    """The request ended without telling: its client went away, or the replica refused it."""
    if not breaker.is_tried:
        return breaker
    return replace(breaker, is_tried=False)
