"""Which version an end user gets while a canary runs: pure, and the same in every process.

Each end user has a place between 0 and 100 %, which is a hash and so never stored; the canary
serves the places below its weight. Widening it therefore keeps everyone who is in, and another
canary draws its end users anew.
"""

from hashlib import blake2b

from adapters.access import Resolved

NUM_PLACES = 10_000


def pick(resolved: Resolved, end_user: str) -> Resolved:
    """What this end user gets of a name: its active version, or the canary beside it."""
    canary = resolved.canary
    if canary is None:
        return resolved
    name = f"{canary.adapter}@{canary.version}"
    is_in = place(name, end_user) * 100 < resolved.canary_percent * NUM_PLACES
    return canary if is_in else resolved


def place(version: str, end_user: str) -> int:
    """0 to NUM_PLACES - 1. A version's number is given once, so its name will do."""
    # Lone surrogates are refused with the body; this must not be what fails on one.
    key = f"{version}\0{end_user}".encode(errors="surrogatepass")
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") % NUM_PLACES
