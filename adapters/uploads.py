"""Uploads in parts: opened, filled in any order, resumed after a drop, completed as a version.

A part counts once its row is committed, and its file lies in the upload's quarantine before that:
whatever is killed, what GET lists is there. All but expire_uploads run inside the tenant's scope.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.db.models import Max, Sum
from django.utils import timezone
from rest_framework.request import Request

from adapters import publish, storage
from adapters.models import Upload, UploadPart, UploadStatus
from adapters.names import refuse_alias
from adapters.stored_bytes import require_room
from tenants import audit
from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.models import Plan, Tenant
from tenants.scope import tenant_scope, unscoped

# Since the last part arrived.
EXPIRES_AFTER = timedelta(hours=24)
ENDED_KEPT_FOR = timedelta(days=30)
# OpenAI's word for what is trained, and ours.
PURPOSES = ("fine-tune", "adapter")

_ENDINGS = re.compile(r"\.(zip|tar|tar\.gz|tgz)\Z")
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class ArrivedPart:
    """One part on disk: a file PART_FILE in a quarantine of its own."""

    token: str
    num_bytes: int
    sha256: str


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
    if announced.purpose not in PURPOSES:
        message = f"purpose: expected one of {', '.join(PURPOSES)}, got '{announced.purpose[:40]}'."
        raise ApiError("invalid_purpose", 400, message, param="purpose")
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


def require_checksum(arrived: ArrivedPart, sha256: str | None) -> None:
    """Raises ApiError 400 that names both."""
    if sha256 is not None and sha256.lower() != arrived.sha256:
        message = (
            f"The part's sha256 is not the announced one: expected {sha256[:80]}, got "
            f"{arrived.sha256} over {arrived.num_bytes} bytes. Nothing was kept; send it again."
        )
        raise ApiError("checksum_mismatch", 400, message, param="sha256")


def add_part(
    principal: Principal, upload: Upload, number: int | None, arrived: ArrivedPart
) -> UploadPart:
    """The part's row; its file moves to the upload. Idempotent: the same bytes under the same
    number, or under none, are the part that is there. Other bytes take a number's place.

    Raises ApiError: 409 when the upload has ended, 400 beyond its bytes or the plan's parts.
    """
    plan = Tenant.objects.select_related("plan").get(id=principal.tenant_id).plan
    with transaction.atomic():
        held = _held_pending(upload)
        there = _part_there(held, number, arrived)
        if there is not None and there.sha256 == arrived.sha256:
            return there
        number = number or _next_number(held)
        _require_fits(held, number, arrived, there, plan)
        if there is not None:
            there.delete()
        part = UploadPart.objects.create(
            tenant_id=held.tenant_id,
            upload=held,
            number=number,
            num_bytes=arrived.num_bytes,
            sha256=arrived.sha256,
        )
        storage.keep_part(arrived.token, held.quarantine, part.public_id)
        Upload.objects.filter(id=held.id).update(expires_at=timezone.now() + EXPIRES_AFTER)
        if there is not None:
            _remove_part_on_commit(held.quarantine, there.public_id)
    return part


def _held_pending(upload: Upload) -> Upload:
    held = Upload.objects.select_for_update().get(id=upload.id)
    if held.status != UploadStatus.PENDING:
        raise ApiError(
            "upload_not_pending", 409, f"The upload is {held.status}; it takes no more parts."
        )
    return held


def _part_there(upload: Upload, number: int | None, arrived: ArrivedPart) -> UploadPart | None:
    if number is not None:
        return upload.parts.filter(number=number).first()
    # A client without numbers (OpenAI's own) that sends again after a drop means the same part.
    return upload.parts.filter(sha256=arrived.sha256).first()


def _next_number(upload: Upload) -> int:
    return (upload.parts.aggregate(last=Max("number"))["last"] or 0) + 1


def _require_fits(
    upload: Upload, number: int, arrived: ArrivedPart, there: UploadPart | None, plan: Plan
) -> None:
    if not 1 <= number <= plan.max_upload_parts:
        message = f"number: expected 1 to {plan.max_upload_parts} (the plan's), got {number}."
        raise ApiError("invalid_part_number", 400, message, param="number")
    kept = upload.parts.aggregate(total=Sum("num_bytes"))["total"] or 0
    kept -= there.num_bytes if there else 0
    if not arrived.num_bytes or kept + arrived.num_bytes > upload.num_bytes:
        message = (
            f"The upload is of {upload.num_bytes} bytes and its other parts have {kept}: expected "
            f"1 to {upload.num_bytes - kept} more, got {arrived.num_bytes}."
        )
        raise ApiError("invalid_part_size", 400, message, param="data")


def _remove_part_on_commit(quarantine: str, name: str) -> None:
    transaction.on_commit(lambda: storage.remove_part(quarantine, name), robust=True)


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
        _require_md5(upload, _ordered(upload, part_ids), md5)
    with transaction.atomic():
        # Before the upload's: the order in which publish.upload and open_upload hold rows.
        publish.locked_plan(principal)
        held = Upload.objects.select_for_update().get(id=upload.id)
        if held.status == UploadStatus.COMPLETED:
            return held
        _held_pending(held)
        parts = _ordered(held, part_ids)
        storage.write_order(held.quarantine, [part.public_id for part in parts])
        held.status, held.ended_at = UploadStatus.COMPLETED, timezone.now()
        held.save(update_fields=["status", "ended_at"])
        held.version = publish.upload(
            principal, held.adapter_name, held.quarantine, request, held.num_bytes
        )
        held.save(update_fields=["version"])
        after = {"adapter": held.adapter_name, "version": held.version.number}
        audit.record(principal, "upload.completed", held.public_id, None, after, request)
    return held


def _ordered(upload: Upload, part_ids: Sequence[str] | None) -> list[UploadPart]:
    by_id = {part.public_id: part for part in upload.parts.all()}
    if unknown := [one for one in part_ids or () if one not in by_id]:
        message = f"part_ids: this upload has no part '{unknown[0][:80]}'."
        raise ApiError("unknown_part", 400, message, param="part_ids")
    parts = list(by_id.values()) if part_ids is None else [by_id[one] for one in part_ids]
    num_bytes = sum(part.num_bytes for part in parts)
    if num_bytes != upload.num_bytes:
        message = (
            f"The parts are incomplete: expected {upload.num_bytes} bytes, got {num_bytes} in "
            f"{len(parts)} parts{_gaps(parts) if part_ids is None else ''}."
        )
        raise ApiError("incomplete_upload", 400, message, param="part_ids")
    return parts


def _gaps(parts: Sequence[UploadPart]) -> str:
    numbers = {part.number for part in parts}
    missing = [n for n in range(1, max(numbers, default=0)) if n not in numbers][:10]
    return f" (missing before the last: {', '.join(map(str, missing))})" if missing else ""


def _require_md5(upload: Upload, parts: Sequence[UploadPart], md5: str) -> None:
    found = hashlib.md5(usedforsecurity=False)
    for part in parts:
        with storage.part_path(upload.quarantine, part.public_id).open("rb") as file:
            while chunk := file.read(_READ_BYTES):
                found.update(chunk)
    if found.hexdigest() != md5.lower():
        message = (
            f"md5: expected {md5[:64]}, got {found.hexdigest()} over {upload.num_bytes} bytes."
        )
        raise ApiError("checksum_mismatch", 400, message, param="md5")


def cancel_upload(principal: Principal, upload: Upload, request: Request | None = None) -> Upload:
    """Its parts go. Cancelling twice is cancelling once; 409 when it ended otherwise."""
    if upload.status == UploadStatus.CANCELLED:
        return upload
    with transaction.atomic():
        held = _held_pending(upload)
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
