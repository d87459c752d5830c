"""Who may, and how much: the rows. What the database can hold as a constraint, it holds."""

import secrets

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.db.models import Q
from django.utils import timezone

from tenants.billing_models import BudgetKind, BudgetNotice, Price, UsageRecord, UsageStatus
from tenants.changes import Change
from tenants.limits import LimitColumns
from tenants.scope import ScopedModel

# Django looks for an app's models here.
__all__ = [
    "ApiKey",
    "AuditEvent",
    "BudgetKind",
    "BudgetNotice",
    "Change",
    "KeyScope",
    "KeyState",
    "Member",
    "Plan",
    "Price",
    "Role",
    "Tenant",
    "UsageRecord",
    "UsageStatus",
    "User",
]

# Of a plan; the engine takes these and more.
MIN_WEIGHT, MAX_WEIGHT = 0.01, 100


def new_cache_salt() -> str:
    return secrets.token_hex(16)


class User(AbstractUser):
    """A person. The login is `username`; is_staff makes an operator."""


class Plan(LimitColumns):
    """What each of its tenants may use."""

    name = models.CharField(max_length=80)
    slug = models.SlugField(unique=True)
    max_rank = models.PositiveIntegerField(default=64)
    max_adapters = models.PositiveIntegerField(default=100)
    max_versions = models.PositiveIntegerField(
        default=100, help_text="Versions kept for one adapter."
    )
    max_upload_bytes = models.PositiveBigIntegerField(default=2**30)
    max_upload_parts = models.PositiveIntegerField(default=1000, help_text="Parts of one upload.")
    max_open_uploads = models.PositiveIntegerField(
        default=10, help_text="Uploads in parts that were begun and not ended."
    )
    max_stored_bytes = models.PositiveBigIntegerField(
        default=100 * 2**30, help_text="All versions of a tenant, and its open uploads."
    )
    weight = models.FloatField(
        default=1.0, help_text="A tenant's share of a busy engine beside others'; 1 is normal."
    )

    class Meta:
        ordering = ["name"]
        constraints = [
            *LimitColumns.Meta.constraints,
            models.CheckConstraint(
                condition=Q(weight__gte=MIN_WEIGHT, weight__lte=MAX_WEIGHT),
                name="plan_weight_in_range",
                violation_error_message=f"A weight is between {MIN_WEIGHT} and {MAX_WEIGHT}.",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Tenant(LimitColumns):
    """A customer. Limits of its own only tighten the plan's.

    cache_salt keeps its prefix cache apart from every other; no client sees it.
    """

    slug = models.SlugField(unique=True)
    name = models.CharField(max_length=120)
    plan = models.ForeignKey(Plan, on_delete=models.PROTECT)
    is_active = models.BooleanField(default=True)
    cache_salt = models.CharField(max_length=32, default=new_cache_salt, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["slug"]
        constraints = LimitColumns.Meta.constraints

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    OWNER = "owner"
    DEVELOPER = "developer"
    BILLING = "billing"
    VIEWER = "viewer"


class Member(ScopedModel):
    """A person's place in a tenant."""

    user = models.ForeignKey(User, on_delete=models.CASCADE)
    role = models.CharField(max_length=16, choices=Role.choices)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "user"], name="member_once_per_tenant"),
            models.CheckConstraint(condition=Q(role__in=Role.values), name="member_role_known"),
        ]

    def __str__(self) -> str:
        return f"{self.user} ({self.role})"


class KeyScope(models.TextChoices):
    INFERENCE = "inference"
    ADAPTERS = "adapters"
    USAGE = "usage"
    ADMIN = "admin"


class KeyState(models.TextChoices):
    """What becomes of a request with a key. One that was rotated away works until it expires."""

    ACTIVE = "active"
    REPLACED = "replaced"
    EXPIRED = "expired"
    REVOKED = "revoked"


class ApiKey(ScopedModel, LimitColumns):
    """A key of a tenant. Only the sha256 of its secret is kept; keys are revoked, never deleted.

    Its limits hold beside the tenant's. allowed_models: what it may ask for; empty: everything.
    replaces: the key it was rotated from; family: the first of these, none for that one itself.
    """

    public_id = models.CharField(max_length=16, unique=True)
    secret_sha256 = models.CharField(max_length=64)
    name = models.CharField(max_length=80)
    scopes = models.JSONField()
    allowed_models = models.JSONField(default=list, blank=True)
    replaces = models.OneToOneField(
        "self", null=True, on_delete=models.PROTECT, related_name="replaced_by"
    )
    family = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="+")
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = LimitColumns.Meta.constraints

    def __str__(self) -> str:
        return f"{self.name} (gh-{self.public_id})"

    @property
    def state(self) -> KeyState:
        if self.revoked_at is not None:
            return KeyState.REVOKED
        if self.expires_at is not None and self.expires_at <= timezone.now():
            return KeyState.EXPIRED
        return KeyState.REPLACED if hasattr(self, "replaced_by") else KeyState.ACTIVE


class AuditEvent(ScopedModel):
    """Who did what to what, written in the transaction that did it. Never changed."""

    at = models.DateTimeField(auto_now_add=True)
    user = models.ForeignKey(User, null=True, on_delete=models.SET_NULL)
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.PROTECT)
    # Kept beside the references: a login may change or go, what was recorded does not.
    actor = models.CharField(max_length=200)
    role = models.CharField(max_length=16)
    action = models.CharField(max_length=64)
    target = models.CharField(max_length=200)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    ip = models.GenericIPAddressField(null=True)

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [models.Index(fields=["tenant", "-at", "-id"], name="audit_by_time")]

    def __str__(self) -> str:
        return f"{self.actor}: {self.action} {self.target}"
