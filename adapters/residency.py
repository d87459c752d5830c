"""What a replica's state says of the adapters it holds: one reading for placement and routing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adapters.dialects.dialect import is_digest


@dataclass(frozen=True)
class Residency:
    """digests: held in any tier under the digest's own name; on_device: those that need no copy
    first. load: requests running and waiting; num_requests: of those that run, by digest. Zero and
    empty of engines that do not tell.
    """

    digests: frozenset[str]
    on_device: frozenset[str]
    load: int
    num_requests: Mapping[str, int]


def read_residency(state: dict[str, Any]) -> Residency:
    """Other bytes under a digest's name are not held: the load that follows says what is wrong.

    Raises KeyError or TypeError for what is no state.
    """
    held = [
        one for one in state["adapters"] if isinstance(one, dict) and is_digest(one.get("name"))
    ]
    held = [one for one in held if one.get("digest") == one["name"]]
    leases = {one["name"]: _count(one, "num_leases") for one in held}
    return Residency(
        digests=frozenset(leases),
        on_device=frozenset(one["name"] for one in held if one.get("tier") == "device"),
        load=_count(state, "num_running") + _count(state, "num_waiting"),
        num_requests={name: number for name, number in leases.items() if number},
    )


def _count(found: dict[str, Any], name: str) -> int:
    value = found.get(name)
    return value if isinstance(value, int) else 0
