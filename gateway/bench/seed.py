"""`python -m gateway.bench.seed`: a tenant with limits, an adapter and a key, which is printed."""

import django
from django.utils import timezone

django.setup()

from adapters.models import Adapter, AdapterVersion, VersionState  # noqa: E402
from gateway.bench.dummy import DIGEST  # noqa: E402
from gateway.bench.limits import LIMITS, MODEL  # noqa: E402
from tenants.audit import system  # noqa: E402
from tenants.keys import create_key  # noqa: E402
from tenants.models import Plan, Price, Tenant  # noqa: E402
from tenants.scope import tenant_scope  # noqa: E402


def main() -> None:
    plan = Plan.objects.create(slug="bench", name="Bench", **LIMITS)
    prices = {f"{kind}_per_million": 1 for kind in ("prompt", "cached", "completion")}
    Price.objects.create(plan=plan, effective_from=timezone.now(), **prices)
    tenant = Tenant.objects.create(slug="bench", name="Bench", plan=plan)
    key = create_key(system(tenant.id), "bench", ["inference"])
    with tenant_scope(tenant.id):
        activate(tenant)
    print(key.raw, flush=True)


def activate(tenant: Tenant) -> None:
    """A version without bytes, which the dummy says it holds."""
    adapter = Adapter.objects.create(tenant=tenant, name=MODEL)
    adapter.active_version = AdapterVersion.objects.create(
        tenant=tenant,
        adapter=adapter,
        number=1,
        state=VersionState.ACTIVE,
        digest=DIGEST,
        activated_at=timezone.now(),
        created_by="bench",
    )
    adapter.save()


if __name__ == "__main__":
    main()
