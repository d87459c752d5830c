"""What tokens cost.

Exact: see tenants.money. Prices have effective dates and are fixed at admission.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal

from django.db.models import Min

from tenants.models import Price
from tenants.money import to_nanos


@dataclass(frozen=True)
class PriceBook:
    """Prices for a million tokens. price_id None: the plan has no price yet, everything is free.

    until: when the next ones begin, as far as is known now; they are no other prices by it.
    """

    price_id: int | None
    prompt_per_million: Decimal
    cached_per_million: Decimal
    completion_per_million: Decimal
    until: datetime | None = field(default=None, compare=False)

    def cost(self, prompt: int, cached: int, completion: int) -> Decimal:
        """cached of the prompt tokens came from the prefix cache.

        Raises ValueError unless a part.
        """
        if not 0 <= cached <= prompt or completion < 0:
            raise ValueError(
                f"expected 0 <= cached <= prompt, got {cached=} {prompt=} {completion=}"
            )
        million_fold = (
            (prompt - cached) * self.prompt_per_million
            + cached * self.cached_per_million
            + completion * self.completion_per_million
        )
        return million_fold.scaleb(-6)

    def cost_nanos(self, prompt: int, cached: int, completion: int) -> int:
        """The cost in whole nano-units, rounded up, for the counters."""
        return to_nanos(self.cost(prompt, cached, completion))


FREE = PriceBook(None, Decimal(0), Decimal(0), Decimal(0))


def price_for(tenant_id: int, at: datetime) -> PriceBook:
    """The price of the tenant's plan in effect at a moment."""
    rows = Price.objects.filter(plan__tenant=tenant_id)
    row = rows.filter(effective_from__lte=at).order_by("-effective_from").first()
    coming = rows.filter(effective_from__gt=at).aggregate(first=Min("effective_from"))
    return replace(FREE if row is None else book_of(row), until=coming["first"])


def book_of(row: Price) -> PriceBook:
    return PriceBook(
        price_id=row.id,
        prompt_per_million=row.prompt_per_million,
        cached_per_million=row.cached_per_million,
        completion_per_million=row.completion_per_million,
    )
