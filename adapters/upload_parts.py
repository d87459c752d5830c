"""The parts of an upload: each counts once its row is committed, and its bytes are on disk before.

Inside the tenant's scope.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.db.models import Max, Sum
from django.utils import timezone

from adapters import storage
from adapters.models import Upload, UploadPart, UploadStatus
from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.models import Plan, Tenant

# An upload's, since its last part arrived.
EXPIRES_AFTER = timedelta(hours=24)

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class ArrivedPart:
    """One part on disk: a file PART_FILE in a quarantine of its own."""

    token: str
    num_bytes: int
    sha256: str


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
        held = hold_pending(upload)
        there = _part_there(held, number, arrived)
        if there is not None and there.sha256 == arrived.sha256:
            return there
        number = number or _next_number(held)
        _require_fits(held, number, arrived, there, plan)
        if there is not None:
            _replace_on_commit(held, there)
        part = _keep(held, number, arrived)
        Upload.objects.filter(id=held.id).update(expires_at=timezone.now() + EXPIRES_AFTER)
    return part


def _keep(upload: Upload, number: int, arrived: ArrivedPart) -> UploadPart:
    part = UploadPart.objects.create(
        tenant_id=upload.tenant_id,
        upload=upload,
        number=number,
        num_bytes=arrived.num_bytes,
        sha256=arrived.sha256,
    )
    storage.keep_part(arrived.token, upload.quarantine, part.public_id)
    return part


def hold_pending(upload: Upload) -> Upload:
    """Its row, locked. Raises ApiError 409 when it has ended."""
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


def _replace_on_commit(upload: Upload, part: UploadPart) -> None:
    """Its row goes now, for the new one's number; its file when that is there."""
    quarantine, name = upload.quarantine, part.public_id
    part.delete()
    transaction.on_commit(lambda: storage.remove_part(quarantine, name), robust=True)


def in_order(upload: Upload, part_ids: Sequence[str] | None) -> list[UploadPart]:
    """As named, or by number; all of the upload's bytes. Raises ApiError 400."""
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


def require_md5(upload: Upload, parts: Sequence[UploadPart], md5: str) -> None:
    """Of the whole. Raises ApiError 400 that names both."""
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
