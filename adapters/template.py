"""A tenant's chat template is tried before it is kept, in a child with limits: it is a program."""

import threading
from collections.abc import Callable
from typing import Any

from django.conf import settings

from adapters.validation.child import ValidationCrashed, run_child
from adapters.validation.limits import ChildLimits
from adapters.validation.progress import Progress
from adapters.validation.template import TemplateRequest
from tenants.errors import ApiError

LIMITS = ChildLimits(memory_bytes=1 << 30, cpu_s=2, max_file_bytes=1 << 20, wall_s=20.0)
# Of the children of one web process: they take its CPU time.
_AT_ONCE = threading.BoundedSemaphore(2)


def require_template(values: dict[str, Any]) -> None:
    """values: of check_profile. Raises ApiError 400 with every reason, 503 for a fault of ours."""
    if "chat_template" not in values:
        return
    try:
        with _AT_ONCE:
            reasons = try_template(values["chat_template"], values.get("system_prompt", ""))
    except ValidationCrashed as crash:
        raise ApiError("template_not_checked", 503, str(crash)) from crash
    if reasons:
        details = [{"field": "chat_template", "code": "invalid", "message": one} for one in reasons]
        message = f"chat_template: {'; '.join(reasons)}"
        raise ApiError("invalid_profile", 400, message, details=details)


def try_template(
    source: str, system_prompt: str, on_tick: Callable[[Progress | None], None] = lambda _: None
) -> list[str]:
    """Why it cannot be used; none for a sound one. Raises ValidationCrashed for a fault of ours."""
    request = TemplateRequest(source, system_prompt, str(settings.BASE_MODEL_PATH))
    try:
        return [one["message"] for one in run_child(request, LIMITS, on_tick)["problems"]]
    except ValidationCrashed as crash:
        if not crash.is_clients_fault:
            raise
        return [str(crash)]
