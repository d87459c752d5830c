"""Validating one upload: claimed by one worker, checked in a child process, settled once."""

import logging
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from adapters import storage, tasks
from adapters.blobs import BlobError
from adapters.models import AdapterVersion, Replica, VersionState
from adapters.transition import move, publish_progress, publish_version
from adapters.uploaded_template import keep_uploaded, try_uploaded
from adapters.validation.check import CheckRequest
from adapters.validation.child import ValidationCrashed, run_child
from adapters.validation.limits import ChildLimits
from adapters.validation.progress import Progress
from inference.adapter_format import Problem
from tenants.models import Plan, Tenant
from tenants.scope import tenant_scope, unscoped

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
# A working child is heard of every second, and so is a store that is being written to.
BEAT_S = 1.0
STALE_AFTER = timedelta(seconds=20)
# A queued message is normally taken at once; after this it is taken for lost.
REQUEUE_AFTER = timedelta(seconds=15)
QUARANTINE_MAX_AGE_S = 3600.0
CACHE_MAX_AGE_S = 3600.0


def validate_version(tenant_id: int, version_id: int, limits: ChildLimits | None = None) -> None:
    """Idempotent: only who turns "uploaded" into "validating" works; the others return."""
    with tenant_scope(tenant_id):
        version = _claim(version_id)
        if version is None:
            return
        storage.mark_taken(version.quarantine)
        plan = Tenant.objects.select_related("plan").get(id=tenant_id).plan
        try:
            verdict = run_child(
                _request(version, plan),
                limits or ChildLimits(max_file_bytes=plan.max_upload_bytes + (1 << 20)),
                on_tick=partial(_beat, version),
            )
            # A child of its own: what a template exhausts is no limit of the other checks.
            try_uploaded(version, verdict, lambda _: _beat(version, None))
        except ValidationCrashed as crash:
            _settle_crash(version, crash)
        else:
            _settle_or_retry(version, verdict)


def _claim(version_id: int) -> AdapterVersion | None:
    rows = AdapterVersion.objects.filter(id=version_id, state=VersionState.UPLOADED)
    fields = {"attempt": F("attempt") + 1, "heartbeat_at": timezone.now()}
    if rows.update(state=VersionState.VALIDATING, **fields) != 1:
        return None
    version = AdapterVersion.objects.select_related("adapter").get(id=version_id)
    publish_version(version, VersionState.VALIDATING)
    return version


def _beat(version: AdapterVersion, progress: Progress | None) -> None:
    """A check of less than a second, as most are, comes to none."""
    rows = AdapterVersion.objects.filter(id=version.id, attempt=version.attempt)
    is_ours = rows.filter(state=VersionState.VALIDATING).update(heartbeat_at=timezone.now())
    if is_ours and progress is not None:
        publish_progress(version, progress)


def _request(version: AdapterVersion, plan: Plan) -> CheckRequest:
    return CheckRequest(
        folder=str(storage.quarantine_dir(version.quarantine)),
        base_model_path=str(settings.BASE_MODEL_PATH),
        base_model_name=settings.BASE_MODEL_NAME,
        max_rank=max_rank(plan),
        max_bytes=plan.max_upload_bytes,
    )


def max_rank(plan: Plan) -> int:
    """The plan's, but never above what a replica of the fleet says it can hold."""
    served = [replica.state.get("max_lora_rank") for replica in Replica.objects.all()]
    return min([plan.max_rank, *(rank for rank in served if isinstance(rank, int) and rank > 0)])


def _settle_crash(version: AdapterVersion, crash: ValidationCrashed) -> None:
    if crash.is_clients_fault:
        problem = Problem("validation_limits", str(crash), "upload")
        _reject(version, {"problems": [problem.as_dict()], "warnings": [], "facts": {}})
    elif version.attempt < MAX_ATTEMPTS:
        move(version, VersionState.UPLOADED, heartbeat_at=timezone.now())
    else:
        move(version, VersionState.FAILED, error=str(crash), heartbeat_at=None)


def _settle_or_retry(version: AdapterVersion, verdict: dict[str, Any]) -> None:
    try:
        _settle(version, verdict)
    except BlobError as error:
        log.error("version %s was not stored: %s", version.id, error)
        message = "It passed, but the store did not take its bytes; the operator's log says why."
        _settle_crash(version, ValidationCrashed(message, False))


def _settle(version: AdapterVersion, verdict: dict[str, Any]) -> None:
    report = {name: verdict[name] for name in ("problems", "warnings", "facts")}
    if source := version.report["facts"].get("source"):
        report["facts"]["source"] = source
    if verdict["digest"] is None:
        _reject(version, report)
        return
    report["warnings"] += _same_bytes(version, verdict["digest"])
    rows = AdapterVersion.objects.filter(id=version.id, attempt=version.attempt)
    # The digest first: from here on nobody deletes the bytes that are about to be moved.
    if rows.filter(state=VersionState.VALIDATING).update(digest=verdict["digest"]) != 1:
        return
    quarantine = version.quarantine
    _publish(version, quarantine, verdict["digest"])
    fields = {name: verdict[name] for name in ("digest", "rank", "size_bytes")}
    fields |= {"report": report, "quarantine": "", "error": "", "heartbeat_at": None}
    if _finish(version, fields, verdict["chat_template"]):
        storage.discard_quarantine(quarantine)
    else:
        # Deleted meanwhile, or taken over: then the quarantine is the successor's.
        storage.delete_blob_if_unused(verdict["digest"])


def _finish(
    version: AdapterVersion, fields: dict[str, Any], template: dict[str, str] | None
) -> bool:
    with transaction.atomic():
        fields["report"]["warnings"] += keep_uploaded(version, template)
        is_ours = move(version, VersionState.READY, **fields)
        transaction.set_rollback(not is_ours)
    return is_ours


def _publish(version: AdapterVersion, quarantine: str, digest: str) -> None:
    """A store that takes its time is not taken for a dead worker. Raises BlobError."""
    with ThreadPoolExecutor(1) as pool:
        published = pool.submit(storage.publish_blob, quarantine, digest)
        while not wait([published], BEAT_S).done:
            _beat(version, None)
        published.result()


def _reject(version: AdapterVersion, report: dict[str, Any]) -> None:
    quarantine = version.quarantine
    fields: dict[str, Any] = {"report": report, "quarantine": "", "size_bytes": None}
    if move(version, VersionState.REJECTED, error="", heartbeat_at=None, **fields):
        storage.discard_quarantine(quarantine)


def _same_bytes(version: AdapterVersion, digest: str) -> list[dict[str, str]]:
    twins = AdapterVersion.objects.filter(adapter_id=version.adapter_id, digest=digest)
    twin = twins.exclude(id=version.id).order_by("number").first()
    if twin is None:
        return []
    message = f"the same bytes as version {twin.number}"
    return [Problem("same_bytes", message, "upload").as_dict()]


def requeue_stale() -> int:
    """Queues again what a dead worker or a lost message left; returns how many."""
    now = timezone.now()
    with unscoped():  # A sweeper for all tenants.
        rows = AdapterVersion.objects.select_related("adapter")
        lost = list(rows.filter(state=VersionState.UPLOADED, heartbeat_at__lt=now - REQUEUE_AFTER))
        dead = list(rows.filter(state=VersionState.VALIDATING, heartbeat_at__lt=now - STALE_AFTER))
    num_queued = sum(_requeue(version) for version in [*lost, *dead])
    storage.sweep_quarantine(QUARANTINE_MAX_AGE_S)
    storage.sweep_cache(CACHE_MAX_AGE_S)
    return num_queued


def _requeue(version: AdapterVersion) -> bool:
    with tenant_scope(version.tenant_id):
        if version.state == VersionState.VALIDATING and version.attempt >= MAX_ATTEMPTS:
            error = f"Checking was interrupted {version.attempt} times."
            move(version, VersionState.FAILED, error=error, heartbeat_at=None)
            return False
        if version.state == VersionState.VALIDATING:
            if not move(version, VersionState.UPLOADED, heartbeat_at=timezone.now()):
                return False
        else:
            AdapterVersion.objects.filter(id=version.id).update(heartbeat_at=timezone.now())
        tasks.queue(tasks.validate, version.tenant_id, version.id)
        return True
