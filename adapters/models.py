"""What was uploaded, its versions, and which replica should hold which digest.

The database holds the invariants it can: one active and one activating version an adapter, a digest
wherever bytes are promised, one placement a digest and replica.
"""

from typing import Any

from django.core.validators import RegexValidator
from django.db import models, transaction
from django.db.models import Q

from adapters.canary_models import Canary, CanaryState
from adapters.evaluation_models import EvalSet, Evaluation, EvaluationStatus, Gate
from adapters.import_models import Import, ImportStatus
from adapters.name_models import ModelName
from adapters.upload_models import Upload, UploadPart, UploadStatus
from tenants.scope import ScopedModel

# Django looks for an app's models here.
__all__ = [
    "Adapter",
    "AdapterVersion",
    "Canary",
    "CanaryState",
    "EvalSet",
    "Evaluation",
    "EvaluationStatus",
    "FleetEvent",
    "Gate",
    "Import",
    "ImportStatus",
    "ModelName",
    "Placement",
    "PlacementState",
    "Replica",
    "Upload",
    "UploadPart",
    "UploadStatus",
    "VersionState",
]

# Lower case, so that two names never differ by case only; no "@", "/" or ":", which mean something
# in a `model` field.
NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,62}\Z"


class Keep(models.TextChoices):
    """How near to the device replicas keep an adapter's active version while nobody asks for it."""

    NO = "no"
    # In host memory when there is room.
    WARM = "warm"
    # On the device, always.
    PINNED = "pinned"


class Adapter(ScopedModel):
    """A tenant's name for a line of versions. active_version is what a request by name gets."""

    name = models.CharField(
        max_length=63,
        validators=[RegexValidator(NAME_PATTERN, "Lower-case letters, digits, '.', '_' and '-'.")],
    )
    description = models.CharField(max_length=500, blank=True)
    active_version = models.ForeignKey(
        "AdapterVersion", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    keep = models.CharField(max_length=16, choices=Keep.choices, default=Keep.NO)
    # Since when no version is to serve; until one is activated again.
    retired_at = models.DateTimeField(null=True)
    gate = models.CharField(max_length=16, choices=Gate.choices, default=Gate.OFF)
    # Numbers are never given twice, also after a version was deleted.
    last_number = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="adapter_name_once_per_tenant")
        ]

    def save(self, *args: Any, **kwargs: Any) -> None:
        """A new one takes its name in the same transaction: an alias of that name makes it fail."""
        is_new = self._state.adding
        with transaction.atomic():
            super().save(*args, **kwargs)
            if is_new:
                ModelName.objects.create(tenant_id=self.tenant_id, adapter=self, name=self.name)

    def __str__(self) -> str:
        return self.name


class VersionState(models.TextChoices):
    UPLOADED = "uploaded"
    VALIDATING = "validating"
    REJECTED = "rejected"
    READY = "ready"
    ACTIVATING = "activating"
    ACTIVE = "active"
    FAILED = "failed"
    RETIRED = "retired"


# Whose bytes lie in the store, to be served.
PUBLISHED_STATES = (VersionState.READY, VersionState.ACTIVATING, VersionState.ACTIVE)


def empty_report() -> dict[str, object]:
    return {"problems": [], "warnings": [], "facts": {}}


class AdapterVersion(ScopedModel):
    """One upload. Its digest names its bytes everywhere; the number is for people.

    size_bytes: of the upload until it is checked, then of what was published; of a rejected one
    None. quarantine: folder name below the store's quarantine while the upload is not published.
    attempt: fences a validation, so that a worker thought dead cannot write over its successor.
    error: why it failed, for the tenant. superseded_at: when it stopped being active. profile: what
    requests are filled in with, as adapters.profile checked it; {} is none.
    """

    adapter = models.ForeignKey(Adapter, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    state = models.CharField(
        max_length=16, choices=VersionState.choices, default=VersionState.UPLOADED
    )
    digest = models.CharField(max_length=64, blank=True, db_index=True)
    report = models.JSONField(default=empty_report)
    profile = models.JSONField(default=dict)
    rank = models.PositiveIntegerField(null=True)
    size_bytes = models.PositiveBigIntegerField(null=True)
    quarantine = models.CharField(max_length=64, blank=True)
    attempt = models.PositiveIntegerField(default=0)
    heartbeat_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True)
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)
    activated_at = models.DateTimeField(null=True)
    superseded_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-number"]
        constraints = [
            models.UniqueConstraint(fields=["adapter", "number"], name="version_number_once"),
            models.CheckConstraint(
                condition=Q(state__in=VersionState.values), name="version_state_known"
            ),
            models.CheckConstraint(
                condition=~Q(state__in=[*PUBLISHED_STATES, VersionState.RETIRED]) | ~Q(digest=""),
                name="version_published_has_digest",
            ),
            models.UniqueConstraint(
                fields=["adapter"],
                condition=Q(state=VersionState.ACTIVE),
                name="version_one_active",
            ),
            models.UniqueConstraint(
                fields=["adapter"],
                condition=Q(state=VersionState.ACTIVATING),
                name="version_one_activating",
            ),
        ]
        indexes = [
            models.Index(
                fields=["state", "heartbeat_at"],
                condition=Q(
                    state__in=[
                        VersionState.UPLOADED,
                        VersionState.VALIDATING,
                        VersionState.ACTIVATING,
                    ]
                ),
                name="version_in_work",
            )
        ]

    def __str__(self) -> str:
        return f"{self.adapter_id}@{self.number} {self.state}"


class Replica(models.Model):
    """An inference process of REPLICA_URLS, or one that announced itself; its last report."""

    url = models.CharField(max_length=200, unique=True)
    # A name of adapters.dialects: which engine it is.
    dialect = models.CharField(max_length=16, default="grafthouse")
    healthy = models.BooleanField(default=False)
    last_seen = models.DateTimeField(null=True)
    # inference.request.EngineState as JSON.
    state = models.JSONField(default=dict)
    error = models.CharField(max_length=500, blank=True)
    # When it last said itself that it is there; null for one that REPLICA_URLS alone names.
    announced_at = models.DateTimeField(null=True)
    # Since when it takes nothing new, and by whose word.
    draining_since = models.DateTimeField(null=True)
    drained_by = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["url"]

    def __str__(self) -> str:
        return self.url

    @property
    def is_draining(self) -> bool:
        return self.draining_since is not None


class FleetEvent(models.Model):
    """What an operator did to the fleet, written in the transaction that did it. Never changed.

    Of no tenant, so no audit row of one: only operators see it. Outlives the replica it names.
    """

    at = models.DateTimeField(auto_now_add=True)
    actor = models.CharField(max_length=200)
    action = models.CharField(max_length=64)
    target = models.CharField(max_length=200)

    class Meta:
        ordering = ["-at", "-id"]

    def __str__(self) -> str:
        return f"{self.actor}: {self.action} {self.target}"


class PlacementState(models.TextChoices):
    PENDING = "pending"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"
    ORPHANED = "orphaned"


class Placement(models.Model):
    """That a replica should hold a digest, or (orphaned) still holds one that nothing needs.

    Of no tenant: equal bytes of two tenants are one digest. next_attempt_at: not before; while
    loading, when the loading worker's claim ends. orphaned_at: since when nothing needs it here.
    """

    digest = models.CharField(max_length=64)
    replica = models.ForeignKey(Replica, on_delete=models.CASCADE, related_name="placements")
    state = models.CharField(
        max_length=16, choices=PlacementState.choices, default=PlacementState.PENDING
    )
    attempts = models.PositiveIntegerField(default=0)
    next_attempt_at = models.DateTimeField()
    orphaned_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["digest", "replica"]
        constraints = [
            models.UniqueConstraint(
                fields=["digest", "replica"], name="placement_once_per_replica"
            ),
            models.CheckConstraint(
                condition=Q(state__in=PlacementState.values), name="placement_state_known"
            ),
            models.CheckConstraint(
                condition=Q(state=PlacementState.ORPHANED, orphaned_at__isnull=False)
                | ~Q(state=PlacementState.ORPHANED) & Q(orphaned_at__isnull=True),
                name="placement_orphaned_since",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.digest[:12]} on {self.replica_id}: {self.state}"
