"""Whose turn a request takes in the engine, and that tenant's weight beside others.

Headers, as the body belongs to the client: whoever stands in front of the engine sets them. Without
them the prefix cache's namespace tells tenants apart, as behind the gateway it does.
"""

from dataclasses import dataclass

from aiohttp import web

from inference.request_check import MAX_WEIGHT, MIN_WEIGHT
from inference.server.fields import invalid

TENANT = "X-Tenant"
WEIGHT = "X-Tenant-Weight"
MAX_TENANT_CHARS = 256


@dataclass(frozen=True)
class Share:
    tenant: str
    weight: float = 1.0


def read_share(request: web.Request, cache_salt: str) -> Share:
    """Raises EngineError INVALID_REQUEST naming the header at fault."""
    tenant = request.headers.get(TENANT, cache_salt)
    if len(tenant) > max(MAX_TENANT_CHARS, len(cache_salt)):
        message = f"'{TENANT}' has {len(tenant)} characters; at most {MAX_TENANT_CHARS}."
        raise invalid(TENANT, message)
    return Share(tenant, _weight(request.headers.get(WEIGHT, "1")))


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    # Also false for NaN.
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        message = f"'{WEIGHT}' must be a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}: {text!r}."
        raise invalid(WEIGHT, message)
    return weight
