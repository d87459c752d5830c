"""Measuring a version on a replica that holds it: asked for here, run by a worker, kept for good.

While one is asked for, placement counts the version among what replicas should hold. Two run at a
time in the whole house, beside placement and validation on the same workers; the others wait. All
of them together take one small share of a replica, and none of it is charged to anybody's quota.
"""

import logging
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone
from rest_framework.request import Request

from adapters import tasks
from adapters.dialects import DIALECTS
from adapters.dialects.dialect import Ability, ReplicaError
from adapters.eval_set import eval_set_of
from adapters.evaluation_models import EVALUATION_IN_WORK
from adapters.models import (
    PUBLISHED_STATES,
    AdapterVersion,
    Evaluation,
    EvaluationStatus,
    Placement,
    PlacementState,
    Replica,
)
from adapters.scoring import ADAPTER, BASE, PROMPTED, Contender, Judge, NotScorable, num_steps
from adapters.transition import label
from inference.model_spec import ModelError, ModelSpec
from tenants import audit, events
from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.scope import tenant_scope, unscoped

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
MAX_RUNNING = 2
MAX_IN_WORK_PER_TENANT = 4
BEAT_S = 1.0
STALE_AFTER = timedelta(seconds=10)
# For a replica to hold the version, and for its turn.
MAX_WAIT = timedelta(minutes=10)
# Their share of a replica beside a tenant of weight 1.
HEADERS = {"X-Tenant": "evaluation", "X-Tenant-Weight": "0.05"}


def begin_evaluation(
    principal: Principal,
    version: AdapterVersion,
    system_prompt: str | None = None,
    request: Request | None = None,
) -> Evaluation:
    """system_prompt: of the base's second turn; without one the version's profile's. The same asked
    for while it is under way is the same.

    Raises ApiError 409: it is not published, or there is nothing to measure it by; 403: too many.
    """
    with transaction.atomic():
        fields = _asked_for(version, system_prompt)
        in_work = Evaluation.objects.filter(status__in=EVALUATION_IN_WORK)
        if same := in_work.filter(**fields).first():
            return same
        if in_work.count() >= MAX_IN_WORK_PER_TENANT:
            message = f"{MAX_IN_WORK_PER_TENANT} evaluations are under way; wait for one to end."
            raise ApiError("evaluation_limit_reached", 403, message)
        row = _new_row(principal, fields)
        after = {"evaluation": row.public_id, "digest": row.digest, "eval_set": row.eval_set_sha256}
        audit.record(principal, "evaluation.begun", label(version), None, after, request)
        tell(row)
        tasks.queue(tasks.reconcile)
    return row


def _asked_for(version: AdapterVersion, system_prompt: str | None) -> dict[str, Any]:
    """What makes two evaluations the same. Raises ApiError 409."""
    if version.state not in PUBLISHED_STATES:
        message = f"{label(version)} is {version.state}; only a ready version can be evaluated."
        raise ApiError("not_evaluable", 409, message)
    eval_set = eval_set_of(version.adapter)
    if eval_set is None:
        message = f"'{version.adapter.name}' has no eval set; upload one first."
        raise ApiError("no_eval_set", 409, message)
    own = str(version.profile.get("system_prompt") or "")
    prompts = {"system_prompt": own if system_prompt is None else system_prompt}
    return {"version": version, "eval_set": eval_set, **prompts, "adapter_prompt": own}


def _new_row(principal: Principal, fields: dict[str, Any]) -> Evaluation:
    eval_set = fields["eval_set"]
    row = Evaluation(
        tenant_id=principal.tenant_id,
        eval_set_sha256=eval_set.sha256,
        is_default_set=not eval_set.is_current,
        num_examples=eval_set.num_examples,
        digest=fields["version"].digest,
        heartbeat_at=timezone.now(),
        created_by=audit.name_of(principal),
        **fields,
    )
    row.num_steps = num_steps(eval_set.examples, len(contenders(row)))
    row.save()
    return row


def contenders(row: Evaluation) -> list[Contender]:
    """The base; the base told in words; the version, as it is served."""
    found = [Contender(BASE, None)]
    if row.system_prompt:
        found.append(Contender(PROMPTED, None, row.system_prompt))
    return [*found, Contender(ADAPTER, row.digest, row.adapter_prompt)]


def access_evaluation(version: AdapterVersion, public_id: str) -> Evaluation:
    """Raises ApiError 404."""
    rows = Evaluation.objects.filter(version_id=version.id).select_related("version__adapter")
    row = rows.filter(public_id=public_id).first() if public_id.isascii() else None
    if row is None:
        raise ApiError("not_found", 404, f"There is no evaluation '{public_id[:80]}'.")
    return row


def digests_under_evaluation() -> set[str]:
    """What replicas should hold for it. Call unscoped."""
    rows = Evaluation.objects.filter(status__in=EVALUATION_IN_WORK, tenant__is_active=True)
    return set(rows.values_list("digest", flat=True))


def holder_of(digest: str) -> Replica | None:
    """A healthy replica that holds it and can score, the least busy first."""
    loaded = Placement.objects.filter(digest=digest, state=PlacementState.LOADED)
    replicas = Replica.objects.filter(healthy=True, placements__in=loaded)
    able = [one for one in replicas if Ability.SCORE in DIALECTS[one.dialect].abilities]
    return min(able, key=lambda one: int(one.state.get("num_running") or 0), default=None)


def run_evaluation(tenant_id: int, evaluation_id: int) -> None:
    """Idempotent: only who claims the row works."""
    with tenant_scope(tenant_id):
        row = _claim(evaluation_id)
        if row is None:
            return
        replica = holder_of(row.digest)
        if replica is None or row.eval_set is None:
            _give_back(row)
            return
        try:
            results = _measure(row, replica)
        except NotScorable as error:
            _settle(row, EvaluationStatus.FAILED, error_code=error.code, error=str(error))
        except ReplicaError as error:
            _retry_or_fail(row, replica, error)
        else:
            made = {"results": results, "replica": replica.url, "model": replica.state["model"]}
            _settle(row, EvaluationStatus.COMPLETED, **made)


def _retry_or_fail(row: Evaluation, replica: Replica, error: ReplicaError) -> None:
    """What the replica said is for the operator: it may name paths and addresses."""
    log.warning("evaluation %s on %s: %s", row.public_id, replica.url, error)
    if row.attempt < MAX_ATTEMPTS and not error.is_final:
        _give_back(row)
        return
    message = "The replica that it ran on could not answer; try again."
    _settle(row, EvaluationStatus.FAILED, error_code="replica_failed", error=message)


def _claim(evaluation_id: int) -> Evaluation | None:
    rows = Evaluation.objects.filter(id=evaluation_id, status=EvaluationStatus.QUEUED)
    fields: dict[str, Any] = {"attempt": F("attempt") + 1, "heartbeat_at": timezone.now()}
    if rows.update(status=EvaluationStatus.RUNNING, num_done=0, **fields) != 1:
        return None
    row = Evaluation.objects.select_related("version__adapter", "eval_set").get(id=evaluation_id)
    tell(row)
    return row


def _give_back(row: Evaluation) -> None:
    """It waits for another turn."""
    if _own(row).update(status=EvaluationStatus.QUEUED, num_done=0):
        row.status = EvaluationStatus.QUEUED
        tell(row)


def _measure(row: Evaluation, replica: Replica) -> dict[str, Any]:
    """The replica is asked on a thread of its own, while this one beats and tells."""
    done: list[None] = []
    judge = Judge(
        url=replica.url,
        model=replica.state["model"],
        headers=HEADERS,
        cache_salt=f"evaluation:{row.tenant_id}",
        end_ids=_end_ids(),
        on_step=lambda: done.append(None),
    )
    assert row.eval_set is not None
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(judge.results, row.eval_set.examples, contenders(row))
        while not wait([work], BEAT_S).done:
            _beat(row, len(done))
        return work.result()


def _end_ids() -> frozenset[int]:
    try:
        return frozenset(ModelSpec.load(settings.BASE_MODEL_PATH).eos_token_ids)
    except ModelError as error:
        log.error("BASE_MODEL_PATH: %s", error)
        message = "The base model's configuration cannot be read; the operator's log says why."
        raise NotScorable("base_model_unreadable", message) from error


def _beat(row: Evaluation, num_done: int) -> None:
    _own(row).update(heartbeat_at=timezone.now(), num_done=num_done)
    if row.num_done != num_done:
        row.num_done = num_done
        tell(row)


def _settle(row: Evaluation, status: EvaluationStatus, **fields: Any) -> None:
    now = timezone.now()
    row.num_done = row.num_steps if status == EvaluationStatus.COMPLETED else row.num_done
    with transaction.atomic():
        changed = {"status": status, "finished_at": now, "num_done": row.num_done, **fields}
        if _own(row).update(**changed) != 1:
            return
        row.status = status
        after = {"evaluation": row.public_id, "digest": row.digest, **_told(fields)}
        actor = audit.system(row.tenant_id)
        audit.record(actor, f"evaluation.{status}", label(row.version), None, after)
        tell(row)


def _told(fields: dict[str, Any]) -> dict[str, Any]:
    """What the audit keeps: the figures and what they cost, or why there are none."""
    if "results" not in fields:
        return {"error_code": fields["error_code"]}
    losses = {one["name"]: one["loss"] for one in fields["results"]["contenders"]}
    return {"losses": losses, "usage": fields["results"]["usage"]}


def _own(row: Evaluation) -> QuerySet[Evaluation]:
    """The row, while this run is the one that holds it."""
    return Evaluation.objects.filter(id=row.id, attempt=row.attempt, status=row.status)


def tell(row: Evaluation) -> None:
    version = row.version
    named = {"adapter": version.adapter.name, "number": version.number, "id": row.public_id}
    counts = {"num_done": row.num_done, "num_steps": row.num_steps}
    events.publish(row.tenant_id, "evaluation.changed", named | {"status": row.status} | counts)


def dispatch_evaluations() -> int:
    """Gives the oldest their turn, and ends what cannot have one; returns how many were queued."""
    now = timezone.now()
    with unscoped():  # A turn is one of all tenants'.
        rows = Evaluation.objects.select_related("version__adapter", "eval_set")
        running = list(rows.filter(status=EvaluationStatus.RUNNING))
        waiting = list(rows.filter(status=EvaluationStatus.QUEUED).order_by("created_at"))
    stale = [row for row in running if row.heartbeat_at < now - STALE_AFTER]
    for row in stale:
        _take_over(row)
    num_free = MAX_RUNNING - (len(running) - len(stale))
    ready = [row for row in waiting if _may_run(row, now)]
    for row in ready[: max(num_free, 0)]:
        tasks.queue(tasks.evaluate, row.tenant_id, row.id)
    return len(ready[: max(num_free, 0)])


def _take_over(row: Evaluation) -> None:
    """Whoever ran it is taken for dead."""
    with tenant_scope(row.tenant_id):
        if row.attempt < MAX_ATTEMPTS:
            _give_back(row)
            return
        error = f"It was interrupted {row.attempt} times."
        _settle(row, EvaluationStatus.FAILED, error_code="interrupted", error=error)


def _may_run(row: Evaluation, now: Any) -> bool:
    with tenant_scope(row.tenant_id):
        if row.eval_set is None or row.version.state not in PUBLISHED_STATES:
            error = "The version or its eval set is not what it was; ask again."
            _settle(row, EvaluationStatus.FAILED, error_code="changed", error=error)
            return False
        if holder_of(row.digest) is not None:
            return True
        if row.created_at < now - MAX_WAIT:
            error = f"No replica that can score held it within {MAX_WAIT.seconds // 60} minutes."
            _settle(row, EvaluationStatus.FAILED, error_code="no_replica", error=error)
        return False
