"""What one admitted request is to the replica that serves it, to its answer, and to the ledger."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from adapters.access import Resolved
from gateway.openai.relay import Identity
from gateway.openai.schema import Ask
from tenants.auth import Principal
from tenants.metering import UsageStart
from tenants.prices import PriceBook
from tenants.reservation import Reservation


@dataclass(frozen=True)
class Admission:
    """What was decided before a replica is chosen. max_tokens: per sequence, as sent upstream."""

    request_id: str
    principal: Principal
    ask: Ask
    resolved: Resolved
    prices: PriceBook
    reservation: Reservation
    max_tokens: int
    started_at: datetime

    def identity(self) -> Identity:
        """The answer names the version that served, also to who asked for the active one."""
        resolved = self.resolved
        is_version = resolved.adapter is not None and resolved.version is not None
        name = f"{resolved.adapter}@{resolved.version}" if is_version else resolved.public_name
        return Identity(self.request_id, name, resolved.digest or "base")

    def usage_start(self, replica: str) -> UsageStart:
        principal, resolved = self.principal, self.resolved
        return UsageStart(
            request_id=self.request_id,
            tenant_id=principal.tenant_id,
            endpoint=self.ask.endpoint,
            model=self.identity().model,
            key_id=principal.key_id,
            user_id=principal.user_id,
            adapter=resolved.adapter or "",
            version=resolved.version,
            digest=resolved.digest or "",
            replica=replica,
            prices=self.prices,
            started_at=self.started_at,
        )

    def upstream_body(self) -> dict[str, Any]:
        body = {name: value for name, value in self.ask.body.items() if value is not None}
        body.pop("max_completion_tokens", None)
        return body | {
            "cache_salt": self.principal.cache_salt,
            "max_tokens": self.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
