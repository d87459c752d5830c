"""`manage.py seed_demo`: two tenants and their adapters, uploaded and activated as anyone's are.

Repeating it changes nothing that is there: it finishes what an interrupted run left, and makes new
credentials only where VAR_DIR/demo.json has lost them.
"""

import json
import secrets
import shutil
import time
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from adapters import publish, storage
from adapters.activation import begin_activation
from adapters.models import AdapterVersion, VersionState
from gateway import demo_access
from gateway.embedded import own_url
from tenants.auth import Principal, authenticate_key, principal_for_member
from tenants.errors import ApiError
from tenants.keys import create_key
from tenants.models import KeyScope, Member, Plan, Price, Role, Tenant, User
from tenants.scope import tenant_scope

ADAPTERS_DIR = Path(settings.ROOT_DIR) / "demo" / "adapters"
# The shape that the demo's adapters were trained on; any other base gets tenants without adapters.
DEMO_SHAPE = {"hidden_size": 576, "num_hidden_layers": 30, "vocab_size": 49152}
OPERATOR = "operator"
KEY_NAME = "demo"
KEY_SCOPES = [KeyScope.INFERENCE.value, KeyScope.ADAPTERS.value, KeyScope.USAGE.value]
WORKING = (VersionState.UPLOADED, VersionState.VALIDATING, VersionState.ACTIVATING)
TIMEOUT_S = 120.0
POLL_INTERVAL_S = 0.1

PLANS: dict[str, dict[str, Any]] = {
    "free": {
        "name": "Free",
        "requests_per_minute": 60,
        "tokens_per_minute": 60_000,
        "max_concurrency": 4,
        "monthly_budget": Decimal(5),
        "max_rank": 32,
        "max_adapters": 5,
        "max_upload_bytes": 256 * 2**20,
    },
    "pro": {
        "name": "Pro",
        "requests_per_minute": 1_000,
        "tokens_per_minute": 1_000_000,
        "max_concurrency": 64,
        "monthly_budget": Decimal(500),
        "max_rank": 64,
        "max_adapters": 100,
        "max_upload_bytes": 2**30,
        "weight": 4.0,
    },
}
# For a million tokens, in the installation's currency.
PRICES = {
    "free": {"prompt": "0.20", "cached": "0.05", "completion": "0.60"},
    "pro": {"prompt": "0.10", "cached": "0.02", "completion": "0.40"},
}


@dataclass(frozen=True)
class DemoTenant:
    slug: str
    name: str
    login: str
    plan: str
    adapters: tuple[str, ...]


TENANTS = (
    DemoTenant("acme", "Acme Supplies", "ann@acme.example", "pro", ("order-json", "ticket-triage")),
    DemoTenant("globex", "Globex Care", "gus@globex.example", "free", ("support-voice",)),
)


class Command(BaseCommand):
    help = "Make the demo's plans, tenants, members, keys and adapters; safe to repeat."

    def handle(self, *args: Any, **options: Any) -> None:
        access = demo_access.load()
        access["url"] = own_url()
        for slug, fields in PLANS.items():
            ensure_plan(slug, fields)
        access["operator"] = ensure_operator(access.get("operator"))
        kept = {entry["slug"]: entry for entry in access.get("tenants", [])}
        access["tenants"] = [ensure_tenant(demo, kept.get(demo.slug, {})) for demo in TENANTS]
        # Before the adapters: what was made is never lost with an interrupted run.
        demo_access.keep(access)
        if not is_demo_model():
            self.stdout.write(
                f"{settings.BASE_MODEL_NAME} is not the demo's base: no demo adapters"
            )
            return
        for demo, entry in zip(TENANTS, access["tenants"], strict=True):
            if entry["adapters"] != list(demo.adapters):
                entry["adapters"] = self.seed_adapters(demo)
                demo_access.keep(access)

    def seed_adapters(self, demo: DemoTenant) -> list[str]:
        principal = principal_for_member(User.objects.get(username=demo.login).id, demo.slug)
        with tenant_scope(principal.tenant_id):
            versions = [ensure_uploaded(principal, name) for name in demo.adapters]
            for version in versions:
                ensure_active(principal, version)
                self.stdout.write(f"{demo.slug}: {version.adapter.name} is active")
        return list(demo.adapters)


def ensure_plan(slug: str, fields: dict[str, Any]) -> None:
    plan, _ = Plan.objects.get_or_create(slug=slug, defaults=fields)
    if not Price.objects.filter(plan=plan).exists():
        per_million = {f"{kind}_per_million": Decimal(p) for kind, p in PRICES[slug].items()}
        Price.objects.create(plan=plan, **per_million)


def ensure_operator(kept: dict[str, str] | None) -> dict[str, str]:
    user, password = ensure_user(OPERATOR, kept)
    User.objects.filter(id=user.id).update(is_staff=True, is_superuser=True)
    return {"login": OPERATOR, "password": password}


def ensure_user(login: str, kept: dict[str, str] | None) -> tuple[User, str]:
    """The user and the kept password; a new one where none is kept or the user is new."""
    email = login if "@" in login else ""
    user, is_new = User.objects.get_or_create(username=login, defaults={"email": email})
    password = (kept or {}).get("password") or secrets.token_urlsafe(12)
    if is_new or not kept:
        user.set_password(password)
        user.save(update_fields=["password"])
    return user, password


def ensure_tenant(demo: DemoTenant, kept: dict[str, Any]) -> dict[str, Any]:
    """The tenant's entry in demo.json. Its adapters are those a former run has finished."""
    plan = Plan.objects.get(slug=demo.plan)
    tenant, is_new = Tenant.objects.get_or_create(
        slug=demo.slug, defaults={"name": demo.name, "plan": plan}
    )
    user, password = ensure_user(demo.login, kept)
    with tenant_scope(tenant.id):
        Member.objects.get_or_create(tenant=tenant, user=user, defaults={"role": Role.OWNER})
    return {
        "slug": demo.slug,
        "login": demo.login,
        "password": password,
        "api_key": ensure_key(tenant, user, kept.get("api_key", "")),
        "adapters": [] if is_new else kept.get("adapters", []),
    }


def ensure_key(tenant: Tenant, user: User, kept: str) -> str:
    """The kept key if it still opens the tenant, else a new one."""
    try:
        if authenticate_key(kept).tenant_id == tenant.id:
            return kept
    except ApiError:
        pass
    return create_key(principal_for_member(user.id, tenant.slug), KEY_NAME, KEY_SCOPES).raw


def is_demo_model() -> bool:
    config = json.loads((settings.BASE_MODEL_PATH / "config.json").read_text())
    return all(config.get(field) == value for field, value in DEMO_SHAPE.items())


def ensure_uploaded(principal: Principal, name: str) -> AdapterVersion:
    """The active or else the newest version; of a new adapter, what demo/adapters/ holds."""
    versions = AdapterVersion.objects.select_related("adapter").filter(adapter__name=name)
    active = versions.filter(state=VersionState.ACTIVE)
    newest = versions.exclude(state=VersionState.REJECTED).order_by("-number")
    if version := active.first() or newest.first():
        return version
    token = storage.new_quarantine()
    for file in (storage.CONFIG_FILE, storage.WEIGHTS_FILE):
        shutil.copyfile(ADAPTERS_DIR / name / file, storage.quarantine_dir(token) / file)
    return publish.upload(principal, name, token)


def ensure_active(principal: Principal, version: AdapterVersion) -> None:
    """Raises CommandError when it is rejected or its activation fails, with the reason."""
    if wait_while_working(version) in (VersionState.READY, VersionState.FAILED):
        begin_activation(principal, version)
    if wait_while_working(version) != VersionState.ACTIVE:
        reasons = [problem["message"] for problem in version.report["problems"]]
        why = "; ".join([version.error, *reasons]).strip("; ")
        raise CommandError(f"{version.adapter.name} is {version.state}: {why}")


def wait_while_working(version: AdapterVersion) -> str:
    """Until a worker is done with the version; its state then."""
    deadline = time.monotonic() + TIMEOUT_S
    version.refresh_from_db()
    while version.state in WORKING:
        if time.monotonic() > deadline:
            raise CommandError(
                f"{version.adapter.name} is still {version.state} after {TIMEOUT_S:g} s: "
                "does a worker run?"
            )
        time.sleep(POLL_INTERVAL_S)
        version.refresh_from_db()
    return version.state
