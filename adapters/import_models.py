"""Imports from a Hugging Face repository: what was asked for, and what came of it."""

import secrets

from django.db import models
from django.db.models import Q

from tenants.scope import ScopedModel


def new_import_id() -> str:
    return f"import_{secrets.token_hex(16)}"


class ImportStatus(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class Import(ScopedModel):
    """commit: the sha that revision meant. has_token: one was given; it is kept nowhere.

    attempt fences a run, as a version's does. error_code is stable, error is for people.
    """

    public_id = models.CharField(max_length=40, unique=True, default=new_import_id)
    adapter_name = models.CharField(max_length=63)
    repo_id = models.CharField(max_length=200)
    revision = models.CharField(max_length=200)
    commit = models.CharField(max_length=64, blank=True)
    has_token = models.BooleanField(default=False)
    status = models.CharField(
        max_length=16, choices=ImportStatus.choices, default=ImportStatus.QUEUED
    )
    attempt = models.PositiveIntegerField(default=0)
    heartbeat_at = models.DateTimeField()
    error_code = models.CharField(max_length=64, blank=True)
    error = models.TextField(blank=True)
    version = models.ForeignKey(
        "adapters.AdapterVersion", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    user = models.ForeignKey("tenants.User", null=True, on_delete=models.SET_NULL)
    api_key = models.ForeignKey("tenants.ApiKey", null=True, on_delete=models.PROTECT)
    role = models.CharField(max_length=16)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=ImportStatus.values), name="import_status_known"
            )
        ]
        indexes = [
            models.Index(
                fields=["heartbeat_at"],
                condition=Q(status__in=["queued", "running"]),
                name="import_in_work",
            )
        ]

    def __str__(self) -> str:
        return f"{self.repo_id} {self.status}"
