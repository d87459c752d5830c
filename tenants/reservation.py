"""What the counters hold for a request that runs."""

from dataclasses import dataclass, field

from tenants.limits import Limits


@dataclass(frozen=True)
class Reservation:
    """What is held for one request. headers: x-ratelimit-* for its answer.

    scopes: the tenant (None) and its key's family, each with its limits.
    """

    tenant_id: int
    family_id: int | None
    request_id: str
    day: str
    num_tokens: int
    cost_nanos: int
    has_budget: bool
    generation: str
    headers: dict[str, str] = field(default_factory=dict)
    scopes: tuple[tuple[int | None, Limits], ...] = ()


def unknown(tenant_id: int, family_id: int | None, request_id: str, day: str) -> Reservation:
    """What may be held for a request: its script looks for it by its id."""
    return Reservation(tenant_id, family_id, request_id, day, 0, 0, True, generation="")
