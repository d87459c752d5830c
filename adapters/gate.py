"""A tenant's condition on what may serve: a version that has been measured, and lost no more.

Going back is never barred: a version that was active before may be activated again.
"""

from typing import Any

from django.db import transaction
from rest_framework.request import Request

from adapters.eval_set import eval_set_of
from adapters.evaluation_models import EvaluationStatus, Gate
from adapters.models import Adapter, AdapterVersion, Evaluation
from adapters.transition import label, publish_adapter
from tenants import audit
from tenants.auth import Principal
from tenants.errors import ApiError

_NAMES = {Gate.BASE: "the base", Gate.PROMPTED: "the base with a system prompt"}


def set_gate(
    principal: Principal, adapter: Adapter, gate: Gate, request: Request | None = None
) -> None:
    """Of the activations that begin from now on. Call inside the tenant's scope."""
    with transaction.atomic():
        held = Adapter.objects.select_for_update().get(id=adapter.id)
        if held.gate == gate:
            return
        before, after = {"gate": held.gate}, {"gate": str(gate)}
        Adapter.objects.filter(id=adapter.id).update(gate=gate)
        audit.record(principal, "adapter.gate_changed", adapter.name, before, after, request)
        publish_adapter(adapter)


def require_passed(adapter: Adapter, version: AdapterVersion) -> None:
    """adapter: with its row held. Raises ApiError 409 with the figures."""
    gate = Gate(adapter.gate)
    if gate == Gate.OFF or version.activated_at is not None:
        return
    losses = _losses(adapter, version)
    own, other = losses.get("adapter"), losses.get(gate)
    if own is None or other is None:
        raise _refused(version, f"has not been evaluated beside {_NAMES[gate]}", losses)
    if own > other:
        worse = f"is worse than {_NAMES[gate]}: its loss is {own:.3f}, the other's {other:.3f}"
        raise _refused(version, worse, losses)


def _losses(adapter: Adapter, version: AdapterVersion) -> dict[str, float]:
    """By contender, of the latest evaluation on the adapter's eval set; empty without one."""
    eval_set = eval_set_of(adapter)
    rows = Evaluation.objects.filter(
        version=version, digest=version.digest, status=EvaluationStatus.COMPLETED
    )
    row = None
    if eval_set is not None:
        row = rows.filter(eval_set_sha256=eval_set.sha256).order_by("-finished_at").first()
    if row is None or row.results is None:
        return {}
    return {one["name"]: one["loss"] for one in row.results["contenders"]}


def _refused(version: AdapterVersion, why: str, losses: dict[str, float]) -> ApiError:
    message = f"{label(version)} {why}, on the adapter's eval set; its gate asks for that."
    details: list[Any] = [{"name": name, "loss": loss} for name, loss in losses.items()]
    return ApiError("gate_refused", 409, message, details=details)
