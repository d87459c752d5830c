"""Uploads in parts: what was announced, and what of it has arrived."""

import secrets

from django.db import models
from django.db.models import Q

from tenants.scope import ScopedModel


def new_upload_id() -> str:
    return f"upload_{secrets.token_hex(16)}"


def new_part_id() -> str:
    return f"part_{secrets.token_hex(16)}"


class UploadStatus(models.TextChoices):
    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class Upload(ScopedModel):
    """One file on its way. num_bytes: as announced. quarantine: where its parts lie, until its
    version owns them. expires_at: moves on with each part.
    """

    public_id = models.CharField(max_length=40, unique=True, default=new_upload_id)
    adapter_name = models.CharField(max_length=63)
    # What the client calls its file; shown, never a path.
    filename = models.CharField(max_length=255)
    purpose = models.CharField(max_length=32)
    num_bytes = models.PositiveBigIntegerField()
    status = models.CharField(
        max_length=16, choices=UploadStatus.choices, default=UploadStatus.PENDING
    )
    quarantine = models.CharField(max_length=64)
    version = models.ForeignKey(
        "adapters.AdapterVersion", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=UploadStatus.values), name="upload_status_known"
            ),
            models.CheckConstraint(
                condition=Q(status="pending", ended_at__isnull=True)
                | ~Q(status="pending") & Q(ended_at__isnull=False),
                name="upload_ended_unless_pending",
            ),
        ]
        indexes = [
            models.Index(
                fields=["expires_at"], condition=Q(status="pending"), name="upload_pending"
            )
        ]

    def __str__(self) -> str:
        return f"{self.public_id} {self.status}"


class UploadPart(ScopedModel):
    """A part that arrived whole. Its id is its file's name in the upload's quarantine."""

    upload = models.ForeignKey(Upload, on_delete=models.CASCADE, related_name="parts")
    public_id = models.CharField(max_length=40, unique=True, default=new_part_id)
    number = models.PositiveIntegerField()
    num_bytes = models.PositiveBigIntegerField()
    sha256 = models.CharField(max_length=64)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["number"]
        constraints = [
            models.UniqueConstraint(fields=["upload", "number"], name="upload_part_number_once")
        ]

    def __str__(self) -> str:
        return f"{self.public_id} ({self.number})"
