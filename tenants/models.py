"""Who may, and how much: the rows. What the database can hold as a constraint, it holds."""

import secrets
from decimal import Decimal

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from tenants.limits import LimitColumns
from tenants.money import MoneyField
from tenants.scope import ScopedModel

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


class Price(models.Model):
    """What a million tokens cost on a plan from a moment on. Six decimals: see tenants.money."""

    plan = models.ForeignKey(Plan, on_delete=models.PROTECT)
    prompt_per_million = models.DecimalField(max_digits=12, decimal_places=6)
    cached_per_million = models.DecimalField(max_digits=12, decimal_places=6)
    completion_per_million = models.DecimalField(max_digits=12, decimal_places=6)
    effective_from = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["plan", "-effective_from"]
        constraints = [
            models.UniqueConstraint(fields=["plan", "effective_from"], name="price_once_a_moment"),
            models.CheckConstraint(
                condition=Q(
                    prompt_per_million__gte=0,
                    cached_per_million__gte=0,
                    completion_per_million__gte=0,
                ),
                name="price_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.plan} from {self.effective_from:%Y-%m-%d %H:%M} UTC"


class UsageStatus(models.TextChoices):
    OPEN = "open"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


class UsageRecord(ScopedModel):
    """One client request, opened before its first byte, settled once. Null tokens: unknown."""

    request_id = models.CharField(max_length=64, unique=True)
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.PROTECT)
    user = models.ForeignKey(User, null=True, on_delete=models.PROTECT)
    endpoint = models.CharField(max_length=40)
    model = models.CharField(max_length=200)
    adapter = models.CharField(max_length=100, blank=True)
    version = models.PositiveIntegerField(null=True)
    digest = models.CharField(max_length=64, blank=True)
    replica = models.CharField(max_length=200, blank=True)
    status = models.CharField(max_length=16, choices=UsageStatus.choices, default=UsageStatus.OPEN)
    error_code = models.CharField(max_length=64, blank=True)
    prompt_tokens = models.PositiveIntegerField(null=True)
    cached_tokens = models.PositiveIntegerField(null=True)
    completion_tokens = models.PositiveIntegerField(null=True)
    price = models.ForeignKey(Price, null=True, on_delete=models.PROTECT)
    cost = MoneyField(default=Decimal(0), db_column="cost_pico")
    started_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-started_at", "-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=UsageStatus.values), name="usage_status_known"
            ),
            models.CheckConstraint(
                condition=Q(cached_tokens__isnull=True) | Q(cached_tokens__lte=F("prompt_tokens")),
                name="usage_cached_in_prompt",
            ),
            models.CheckConstraint(condition=Q(cost__gte=0), name="usage_cost_not_negative"),
            models.CheckConstraint(
                condition=Q(status="open", ended_at__isnull=True)
                | ~Q(status="open") & Q(ended_at__isnull=False),
                name="usage_ended_unless_open",
            ),
        ]
        indexes = [
            models.Index(fields=["tenant", "started_at", "id"], name="usage_by_time"),
            models.Index(
                fields=["heartbeat_at"], condition=Q(status="open"), name="usage_open_by_heartbeat"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.request_id} {self.status}"


class BudgetKind(models.TextChoices):
    TOKENS = "tokens"
    MONEY = "money"


class BudgetNotice(ScopedModel):
    """A part of a month's limit was reached: the tenant's own, or that of api_key. Once each.

    limit and used are tokens, or nano-units of the currency.
    """

    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.PROTECT)
    month = models.CharField(max_length=7)
    kind = models.CharField(max_length=8, choices=BudgetKind.choices)
    percent = models.PositiveSmallIntegerField()
    limit = models.PositiveBigIntegerField()
    used = models.PositiveBigIntegerField()
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "month", "kind", "limit", "percent"],
                condition=Q(api_key__isnull=True),
                name="notice_once_a_tenant",
            ),
            models.UniqueConstraint(
                fields=["api_key", "month", "kind", "limit", "percent"],
                condition=Q(api_key__isnull=False),
                name="notice_once_a_key",
            ),
            models.CheckConstraint(
                condition=Q(kind__in=BudgetKind.values), name="notice_kind_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.percent} % of {self.month}'s {self.kind}"


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
