"""How much a tenant keeps: its versions and its open uploads, against its plan."""

from django.db.models import Sum

from adapters.models import AdapterVersion, Upload, UploadStatus
from tenants.errors import ApiError
from tenants.models import Plan


def stored_bytes() -> int:
    """Equal bytes of two versions count twice. Call inside the tenant's scope."""
    kept = AdapterVersion.objects.aggregate(total=Sum("size_bytes"))["total"] or 0
    pending = Upload.objects.filter(status=UploadStatus.PENDING)
    return kept + (pending.aggregate(total=Sum("num_bytes"))["total"] or 0)


def require_room(plan: Plan, num_bytes: int) -> None:
    """Raises ApiError 403. Hold the tenant's row, so that two uploads cannot both be the last."""
    kept = stored_bytes()
    if kept + num_bytes > plan.max_stored_bytes:
        message = (
            f"The plan keeps {plan.max_stored_bytes} bytes; {kept} are taken and {num_bytes} more "
            "were asked for. Delete versions or cancel uploads first."
        )
        raise ApiError("storage_limit_reached", 403, message)
