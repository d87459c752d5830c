"""A second version of an adapter, beside its active one, for a share of its end users."""

from django.db import models
from django.db.models import Q

from tenants.scope import ScopedModel

MIN_PERCENT, MAX_PERCENT = 1, 99


class CanaryState(models.TextChoices):
    LOADING = "loading"
    RUNNING = "running"
    FAILED = "failed"


class Canary(ScopedModel):
    """At most one an adapter. started_at: since when it is counted, and fences one from the next.
    error: why no replica could hold it.
    """

    adapter = models.OneToOneField("Adapter", on_delete=models.CASCADE, related_name="canary")
    version = models.ForeignKey("AdapterVersion", on_delete=models.CASCADE, related_name="+")
    percent = models.PositiveSmallIntegerField()
    state = models.CharField(
        max_length=16, choices=CanaryState.choices, default=CanaryState.LOADING
    )
    error = models.TextField(blank=True)
    started_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(percent__gte=MIN_PERCENT, percent__lte=MAX_PERCENT),
                name="canary_percent_in_range",
            ),
            models.CheckConstraint(
                condition=Q(state__in=CanaryState.values), name="canary_state_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.version_id} for {self.percent} %: {self.state}"
