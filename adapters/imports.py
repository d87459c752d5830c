"""A version from a Hugging Face repository: asked for here, fetched by a worker, then checked.

The token goes to the worker sealed in the task's message and is written nowhere else. A run that
was killed is run again from the row; one that had a token then says that it needs it again.
"""

import base64
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from functools import partial
from typing import Any

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone
from rest_framework.request import Request

from adapters import publish, storage, tasks
from adapters.models import Import, ImportStatus
from adapters.names import refuse_alias
from adapters.stored_bytes import require_room
from tenants import audit, events
from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.models import Tenant
from tenants.scope import tenant_scope, unscoped

MAX_ATTEMPTS = 3
MAX_RUNNING = 4
BEAT_S = 5.0
STALE_AFTER = timedelta(seconds=30)
# A message that holds a token is waited for; queued again it would come without.
TOKEN_STALE_AFTER = timedelta(minutes=10)
# Of the sealed token; a message older than that is of no use.
TOKEN_TTL_S = 3600

_IN_WORK = (ImportStatus.QUEUED, ImportStatus.RUNNING)


def begin_import(
    principal: Principal,
    name: str,
    repo_id: str,
    revision: str,
    token: str,
    request: Request | None = None,
) -> Import:
    """Raises ApiError: 400 for the name, 409 for an alias, 403 for too many at once."""
    publish.check_name(name)
    refuse_alias(name)
    with transaction.atomic():
        publish.locked_plan(principal)
        _require_turn()
        row = Import.objects.create(
            tenant_id=principal.tenant_id,
            adapter_name=name,
            repo_id=repo_id,
            revision=revision,
            has_token=bool(token),
            heartbeat_at=timezone.now(),
            user_id=principal.user_id,
            api_key_id=principal.key_id,
            role=principal.role,
        )
        after = {"repo_id": repo_id, "revision": revision}
        audit.record(principal, "import.begun", name, None, after, request)
        tasks.queue(tasks.run_import, row.tenant_id, row.id, seal(token))
    return row


def _require_turn() -> None:
    if Import.objects.filter(status__in=_IN_WORK).count() >= MAX_RUNNING:
        message = f"{MAX_RUNNING} imports are under way; wait for one to end."
        raise ApiError("import_limit_reached", 403, message)


def access_import(principal: Principal, name: str, public_id: str) -> Import:
    """Raises ApiError 404."""
    rows = Import.objects.filter(tenant_id=principal.tenant_id, adapter_name=name)
    row = rows.filter(public_id=public_id).first() if public_id.isascii() else None
    if row is None:
        raise ApiError("not_found", 404, f"There is no import '{public_id[:80]}'.")
    return row


def seal(token: str) -> str:
    return _fernet().encrypt(token.encode()).decode() if token else ""


def unseal(sealed: str) -> str:
    """ "" for one that is too old or not ours."""
    try:
        return _fernet().decrypt(sealed, ttl=TOKEN_TTL_S).decode() if sealed else ""
    except InvalidToken:
        return ""


def _fernet() -> Fernet:
    secret = hashlib.sha256(b"import token\0" + settings.SECRET_KEY.encode()).digest()
    return Fernet(base64.urlsafe_b64encode(secret))


def run_import(tenant_id: int, import_id: int, sealed: str) -> None:
    """Idempotent: only who claims the row works."""
    with tenant_scope(tenant_id):
        row = _claim(import_id)
        if row is None:
            return
        token = unseal(sealed)
        if row.has_token and not token:
            message = "It was interrupted; the token is not kept: ask again with it."
            _settle(row, ImportStatus.FAILED, error_code="token_lost", error=message)
            return
        quarantine = storage.new_quarantine()
        if not _fetch(row, token, quarantine):
            storage.discard_quarantine(quarantine)


def _claim(import_id: int) -> Import | None:
    rows = Import.objects.filter(id=import_id, status=ImportStatus.QUEUED)
    fields: dict[str, Any] = {"attempt": F("attempt") + 1, "heartbeat_at": timezone.now()}
    if rows.update(status=ImportStatus.RUNNING, **fields) != 1:
        return None
    return Import.objects.get(id=import_id)


def _fetch(row: Import, token: str, quarantine: str) -> bool:
    """Whether a version took the quarantine over."""
    # A second of imports that no other task needs.
    from adapters import hub

    plan = Tenant.objects.select_related("plan").get(id=row.tenant_id).plan
    try:
        found = hub.look_up(row.repo_id, row.revision, token, plan.max_upload_bytes)
        require_room(plan, found.num_bytes)
        _beat_while(row, partial(hub.download, found, token, storage.quarantine_dir(quarantine)))
        return _publish(row, found, quarantine)
    except hub.HubError as error:
        if error.is_passing and row.attempt < MAX_ATTEMPTS and not row.has_token:
            # The sweeper queues it again.
            _own(row).update(status=ImportStatus.QUEUED, heartbeat_at=timezone.now())
        else:
            _settle(row, ImportStatus.FAILED, error_code=error.code, error=str(error))
    except ApiError as error:
        _settle(row, ImportStatus.FAILED, error_code=error.code, error=error.message)
    return False


def _beat_while(row: Import, work: Callable[[], object]) -> None:
    """Does the work on a thread of its own; meanwhile the row shows that its worker lives."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        while not wait([done], BEAT_S).done:
            _own(row).update(heartbeat_at=timezone.now())
        done.result()


def _publish(row: Import, found: Any, quarantine: str) -> bool:
    actor = audit.Actor(row.tenant_id, row.role, row.user_id, row.api_key_id)
    source = {"repo_id": found.repo_id, "revision": row.revision, "commit": found.commit}
    with transaction.atomic():
        if _own(row).update(status=ImportStatus.COMPLETED, commit=found.commit) != 1:
            return False
        version = publish.upload(
            actor, row.adapter_name, quarantine, None, found.num_bytes, source=source
        )
        Import.objects.filter(id=row.id).update(version=version)
        _tell(row)
    return True


def _settle(row: Import, status: ImportStatus, **fields: Any) -> None:
    actor = audit.Actor(row.tenant_id, row.role, row.user_id, row.api_key_id)
    with transaction.atomic():
        if _own(row).update(status=status, **fields) == 1:
            after = {"repo_id": row.repo_id, **fields}
            audit.record(actor, f"import.{status}", row.adapter_name, None, after)
            _tell(row)


def _own(row: Import) -> Any:
    return Import.objects.filter(id=row.id, attempt=row.attempt, status=ImportStatus.RUNNING)


def _tell(row: Import) -> None:
    events.publish(row.tenant_id, "import.changed", {"adapter": row.adapter_name})


def requeue_imports() -> int:
    """Queues again what a dead worker, a lost message or a hub that was away left."""
    with unscoped():  # A sweeper for all tenants.
        rows = Import.objects.filter(status__in=_IN_WORK)
        stale = list(rows.filter(heartbeat_at__lt=timezone.now() - STALE_AFTER))
    return sum(_requeue(row) for row in stale)


def _requeue(row: Import) -> bool:
    is_waiting = row.status == ImportStatus.QUEUED and row.has_token
    if is_waiting and row.heartbeat_at > timezone.now() - TOKEN_STALE_AFTER:
        return False
    with tenant_scope(row.tenant_id), transaction.atomic():
        rows = Import.objects.filter(id=row.id, attempt=row.attempt, status=row.status)
        if row.status == ImportStatus.RUNNING and row.attempt >= MAX_ATTEMPTS:
            message = f"It was interrupted {row.attempt} times."
            _settle(row, ImportStatus.FAILED, error_code="interrupted", error=message)
            return False
        if rows.update(status=ImportStatus.QUEUED, heartbeat_at=timezone.now()) != 1:
            return False
        tasks.queue(tasks.run_import, row.tenant_id, row.id, "")
        return True
