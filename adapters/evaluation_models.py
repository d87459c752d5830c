"""Evaluations: the examples that versions of an adapter are measured by, and what was measured."""

import secrets

from django.db import models
from django.db.models import Q

from tenants.scope import ScopedModel


def new_evaluation_id() -> str:
    return f"eval_{secrets.token_hex(16)}"


class EvalSet(ScopedModel):
    """sha256: of the uploaded bytes. examples: as adapters.eval_set checked them.

    is_current: what the adapter's next evaluation uses; at most one. The operator's default is
    copied when it is first used, and never current.
    """

    adapter = models.ForeignKey(
        "adapters.Adapter", on_delete=models.CASCADE, related_name="eval_sets"
    )
    sha256 = models.CharField(max_length=64)
    is_current = models.BooleanField(default=False)
    examples = models.JSONField()
    num_examples = models.PositiveIntegerField()
    num_golden = models.PositiveIntegerField()
    size_bytes = models.PositiveIntegerField()
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.UniqueConstraint(fields=["adapter", "sha256"], name="eval_set_once"),
            models.UniqueConstraint(
                fields=["adapter"], condition=Q(is_current=True), name="eval_set_one_current"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.sha256[:12]} of {self.adapter_id}"


class Gate(models.TextChoices):
    """What a version must not be worse than to become active; the names are contenders'."""

    OFF = "off"
    BASE = "base"
    PROMPTED = "base_with_prompt"


class EvaluationStatus(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


EVALUATION_IN_WORK = (EvaluationStatus.QUEUED, EvaluationStatus.RUNNING)


class Evaluation(ScopedModel):
    """One version measured once. What is completed or failed is never written again.

    The set may go, its sha256 stays. attempt fences a run, as a version's does. digest, model,
    replica: what was asked, and named itself in every answer. system_prompt: of the base's second
    turn; adapter_prompt: of the version's profile. results: as adapters.scoring makes them.
    """

    public_id = models.CharField(max_length=40, unique=True, default=new_evaluation_id)
    version = models.ForeignKey(
        "adapters.AdapterVersion", on_delete=models.CASCADE, related_name="evaluations"
    )
    eval_set = models.ForeignKey(EvalSet, null=True, on_delete=models.SET_NULL, related_name="+")
    eval_set_sha256 = models.CharField(max_length=64)
    is_default_set = models.BooleanField(default=False)
    num_examples = models.PositiveIntegerField()
    digest = models.CharField(max_length=64)
    system_prompt = models.TextField(blank=True)
    adapter_prompt = models.TextField(blank=True)
    status = models.CharField(
        max_length=16, choices=EvaluationStatus.choices, default=EvaluationStatus.QUEUED
    )
    attempt = models.PositiveIntegerField(default=0)
    heartbeat_at = models.DateTimeField()
    num_steps = models.PositiveIntegerField(default=0)
    num_done = models.PositiveIntegerField(default=0)
    model = models.CharField(max_length=200, blank=True)
    replica = models.CharField(max_length=200, blank=True)
    results = models.JSONField(null=True)
    error_code = models.CharField(max_length=64, blank=True)
    error = models.TextField(blank=True)
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=EvaluationStatus.values), name="evaluation_status_known"
            ),
            models.CheckConstraint(
                condition=Q(status="completed", results__isnull=False)
                | ~Q(status="completed") & Q(results__isnull=True),
                name="evaluation_completed_has_results",
            ),
        ]
        indexes = [
            models.Index(
                fields=["created_at"],
                condition=Q(status__in=["queued", "running"]),
                name="evaluation_in_work",
            )
        ]

    def __str__(self) -> str:
        return f"{self.public_id} {self.status}"
