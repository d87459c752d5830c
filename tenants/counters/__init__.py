"""The scripts of the counter store. A verb is one script: what all share, and its own.

So a verb pays for no other's: the store runs a script's text from its first line on every call.
"""

from functools import cache, lru_cache
from pathlib import Path

VERBS = ("reserve", "settle", "refresh", "rebuild")
KEY_NAMES = ("sums", "window", "holds", "held", "expired", "recent", "booked")
# Of these a key's family has its own beside the tenant's.
SCOPE_NAMES = ("sums", "window")


@cache
def source(verb: str) -> str:
    folder = Path(__file__).parent
    return "\n".join((folder / f"{name}.lua").read_text() for name in ("scopes", verb))


@lru_cache(maxsize=4096)
def store_keys(tenant_id: int, family_id: int | None) -> tuple[str, ...]:
    """What a script may touch. Of a tenant everything lies on one node of a cluster."""
    own = () if family_id is None else SCOPE_NAMES
    names = [*KEY_NAMES, *(f"{name}:{family_id}" for name in own)]
    return tuple(f"quota:{{{tenant_id}}}:{name}" for name in names)
