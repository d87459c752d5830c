"""What was used, what it costs, and which part of a limit that is."""

from decimal import Decimal

from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from tenants.money import MoneyField
from tenants.scope import ScopedModel


class Price(models.Model):
    """What a million tokens cost on a plan from a moment on. Six decimals: see tenants.money."""

    plan = models.ForeignKey("Plan", on_delete=models.PROTECT)
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
    api_key = models.ForeignKey("ApiKey", null=True, on_delete=models.PROTECT)
    user = models.ForeignKey("User", null=True, on_delete=models.PROTECT)
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

    api_key = models.ForeignKey("ApiKey", null=True, on_delete=models.PROTECT)
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
