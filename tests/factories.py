"""The people of the tests: Alice owns a tenant, Bob develops there, Carol owns another.

Oscar operates. Plain functions that make rows. Passwords are PASSWORD; hashing is Django's own.
"""

from decimal import Decimal
from functools import cache

from django.contrib.auth.hashers import get_hasher, make_password

from tenants.models import Member, Plan, Role, Tenant, User
from tenants.scope import tenant_scope

PASSWORD = "correct horse battery staple"


@cache
def password_hash(algorithm: str) -> str:
    return make_password(PASSWORD, hasher=algorithm)


def make_plan(slug: str = "standard", **limits: int | Decimal | None) -> Plan:
    defaults = {
        "requests_per_minute": 600,
        "tokens_per_minute": 100_000,
        "max_concurrency": 16,
        "monthly_budget": Decimal(100),
        "max_rank": 64,
    }
    return Plan.objects.get_or_create(slug=slug, defaults={"name": slug} | defaults | limits)[0]


def make_user(username: str, is_staff: bool = False) -> User:
    return User.objects.create(
        username=username,
        password=password_hash(get_hasher().algorithm),
        is_staff=is_staff,
        is_superuser=is_staff,
    )


def make_tenant(slug: str, plan: Plan | None = None) -> Tenant:
    return Tenant.objects.create(slug=slug, name=slug.title(), plan=plan or make_plan())


def add_member(tenant: Tenant, user: User, role: str) -> Member:
    with tenant_scope(tenant.id):
        return Member.objects.create(tenant=tenant, user=user, role=role)


def make_alice(tenant: Tenant | None = None) -> User:
    """The owner of "acme"."""
    alice = make_user("alice")
    add_member(tenant or get_acme(), alice, Role.OWNER)
    return alice


def make_bob(tenant: Tenant | None = None) -> User:
    """A developer of "acme"."""
    bob = make_user("bob")
    add_member(tenant or get_acme(), bob, Role.DEVELOPER)
    return bob


def make_carol() -> User:
    """The owner of "initech", a stranger to "acme"."""
    carol = make_user("carol")
    add_member(get_initech(), carol, Role.OWNER)
    return carol


def make_oscar() -> User:
    """The operator, a member of no tenant."""
    return make_user("oscar", is_staff=True)


def get_acme() -> Tenant:
    return Tenant.objects.filter(slug="acme").first() or make_tenant("acme")


def get_initech() -> Tenant:
    return Tenant.objects.filter(slug="initech").first() or make_tenant("initech")
