"""What every request asks the database for, kept."""

from django.conf import settings

from adapters.access import Resolved
from gateway.caches import TenantCache
from gateway.database_process import Ask
from tenants.auth import Principal
from tenants.prices import PriceBook


class Lookups:
    """principals by key or member, models by tenant and name, prices by tenant."""

    def __init__(self, read: Ask) -> None:
        ttl_s = settings.CACHE_TTL_S
        self.principals: TenantCache[Principal] = TenantCache(
            "principals", ttl_s, lambda _, one: one.tenant_id, read, lambda one: one.expires_at
        )
        self.models: TenantCache[Resolved] = TenantCache(
            "models", ttl_s, lambda key, _: key[0], read
        )
        self.prices: TenantCache[PriceBook] = TenantCache(
            "prices", ttl_s, lambda tenant_id, _: tenant_id, read, lambda book: book.until
        )

    def drop(self, tenant_id: int | None) -> None:
        """See TenantCache.drop."""
        for cache in (self.principals, self.models, self.prices):
            cache.drop(tenant_id)

    def prove(self, began: float, tenant_ids: frozenset[int | None]) -> None:
        """See TenantCache.prove."""
        for cache in (self.principals, self.models, self.prices):
            cache.prove(began, tenant_ids)
