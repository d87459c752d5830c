"""Uploads in parts: opened, filled in any order, resumed after a drop, completed as a version.

A part counts once its row is committed, and its file lies in the upload's quarantine before that:
whatever is killed, what GET lists is there (upload_parts). All but expire_uploads run inside the
tenant's scope.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.utils import timezone
from rest_framework.request import Request

from adapters import publish, storage
from adapters.models import Upload, UploadStatus
from adapters.names import refuse_alias
from adapters.stored_bytes import require_room
from adapters.upload_parts import EXPIRES_AFTER, hold_pending, in_order, require_md5
from tenants import audit
from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.models import Plan
from tenants.scope import tenant_scope, unscoped

ENDED_KEPT_FOR = timedelta(days=30)
# OpenAI's word for what is trained, and ours.
PURPOSES = ("fine-tune", "adapter")

_ENDINGS = re.compile(r"\.(zip|tar|tar\.gz|tgz)\Z")


@dataclass(frozen=True)
class Announced:
    """What a client says of its file. adapter: "" means the file's name without its ending."""

    filename: str
    num_bytes: int
    purpose: str
    adapter: str = ""


def open_upload(
    principal: Principal, announced: Announced, request: Request | None = None
) -> Upload:
    """Raises ApiError: 400 for a name or purpose, 409 for an alias, 413 for the size, 403 at the
    plan's limits.
    """
    name = announced.adapter or _ENDINGS.sub("", announced.filename)
    publish.check_name(name)
    refuse_alias(name)
    _require_purpose(announced.purpose)
    with transaction.atomic():
        _require_allowed(publish.locked_plan(principal), announced.num_bytes)
        upload = Upload.objects.create(
            tenant_id=principal.tenant_id,
            adapter_name=name,
            filename=announced.filename,
            purpose=announced.purpose,
            num_bytes=announced.num_bytes,
            quarantine=storage.new_quarantine(),
            created_by=audit.name_of(principal),
            expires_at=timezone.now() + EXPIRES_AFTER,
        )
        after = {"adapter": name, "bytes": announced.num_bytes}
        audit.record(principal, "upload.opened", upload.public_id, None, after, request)
    return upload


def _require_purpose(purpose: str) -> None:
    if purpose not in PURPOSES:
        message = f"purpose: expected one of {', '.join(PURPOSES)}, got '{purpose[:40]}'."
        raise ApiError("invalid_purpose", 400, message, param="purpose")


def _require_allowed(plan: Plan, num_bytes: int) -> None:
    if num_bytes > plan.max_upload_bytes:
        message = f"bytes: the plan allows {plan.max_upload_bytes}, got {num_bytes}."
        raise ApiError("upload_too_large", 413, message, param="bytes")
    if Upload.objects.filter(status=UploadStatus.PENDING).count() >= plan.max_open_uploads:
        message = f"The plan allows {plan.max_open_uploads} open uploads; complete or cancel one."
        raise ApiError("upload_limit_reached", 403, message)
    require_room(plan, num_bytes)


def access_upload(principal: Principal, public_id: str) -> Upload:
    """Raises ApiError 404, the same for absent and for another tenant's."""
    rows = Upload.objects.filter(tenant_id=principal.tenant_id)
    upload = rows.filter(public_id=public_id).first() if public_id.isascii() else None
    if upload is None:
        raise ApiError("not_found", 404, f"There is no upload '{public_id[:80]}'.")
    return upload


def complete_upload(
    principal: Principal,
    upload: Upload,
    part_ids: Sequence[str] | None = None,
    md5: str | None = None,
    request: Request | None = None,
) -> Upload:
    """The parts in the order of part_ids (None: of their numbers) become a version, which the
    worker joins and checks. Idempotent: a completed upload is answered as it is.

    Raises ApiError: 400 for unknown, missing or wrong bytes, 409 when it was cancelled or expired,
    and what publish.upload raises.
    """
    if upload.status == UploadStatus.COMPLETED:
        return upload
    if md5 is not None:
        require_md5(upload, in_order(upload, part_ids), md5)
    with transaction.atomic():
        # Before the upload's: the order in which publish.upload and open_upload hold rows.
        publish.locked_plan(principal)
        held = Upload.objects.select_for_update().get(id=upload.id)
        if held.status == UploadStatus.COMPLETED:
            return held
        hold_pending(held)
        parts = in_order(held, part_ids)
        storage.write_order(held.quarantine, [part.public_id for part in parts])
        _become_version(principal, held, request)
    return held


def _become_version(principal: Principal, held: Upload, request: Request | None) -> None:
    held.status, held.ended_at = UploadStatus.COMPLETED, timezone.now()
    held.save(update_fields=["status", "ended_at"])
    held.version = publish.upload(
        principal, held.adapter_name, held.quarantine, request, held.num_bytes
    )
    held.save(update_fields=["version"])
    after = {"adapter": held.adapter_name, "version": held.version.number}
    audit.record(principal, "upload.completed", held.public_id, None, after, request)


def cancel_upload(principal: Principal, upload: Upload, request: Request | None = None) -> Upload:
    """Its parts go. Cancelling twice is cancelling once; 409 when it ended otherwise."""
    if upload.status == UploadStatus.CANCELLED:
        return upload
    with transaction.atomic():
        held = hold_pending(upload)
        _end(held, UploadStatus.CANCELLED)
        audit.record(principal, "upload.cancelled", held.public_id, None, None, request)
    return held


def _end(held: Upload, status: UploadStatus) -> None:
    held.status, held.ended_at = status, timezone.now()
    held.save(update_fields=["status", "ended_at"])
    held.parts.all().delete()
    quarantine = held.quarantine
    # What a crash leaves here is no row's, and swept.
    transaction.on_commit(lambda: storage.discard_quarantine(quarantine), robust=True)


def expire_uploads() -> int:
    """Ends what nobody sent a part to for EXPIRES_AFTER; forgets what ended long ago."""
    now = timezone.now()
    with unscoped():  # A sweeper for all tenants.
        due = list(Upload.objects.filter(status=UploadStatus.PENDING, expires_at__lt=now))
        Upload.objects.filter(ended_at__lt=now - ENDED_KEPT_FOR).delete()
    return sum(_expire(upload) for upload in due)


def _expire(upload: Upload) -> bool:
    with tenant_scope(upload.tenant_id), transaction.atomic():
        held = Upload.objects.select_for_update().get(id=upload.id)
        if held.status != UploadStatus.PENDING or held.expires_at > timezone.now():
            return False
        _end(held, UploadStatus.EXPIRED)
        actor = audit.system(held.tenant_id)
        audit.record(actor, "upload.expired", held.public_id, None, None)
        return True
