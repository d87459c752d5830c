"""Background work. Arguments are ids; the rows are the truth, so losing a message loses time only.

Each task is idempotent: validation by claiming its row, the others by comparing what is with what
should be. The bodies import late because the verbs they call also queue these tasks.
"""

import logging
from typing import Any

from celery import shared_task
from django.db import transaction
from kombu.exceptions import OperationalError

log = logging.getLogger(__name__)


def queue(task: Any, *ids: int | str) -> None:
    """Once the running transaction commits. A broker that is down is logged and harms nobody:
    requeue_stale and beat find the row.
    """

    def send() -> None:
        try:
            task.delay(*ids)
        except OperationalError as error:
            log.warning("%s%s waits for the next round: %s", task.name, ids, error)

    transaction.on_commit(send, robust=True)


@shared_task
def validate(tenant_id: int, version_id: int) -> None:
    from adapters.validate import validate_version

    validate_version(tenant_id, version_id)


# A round that waited until the next two are due is worth nothing any more.
@shared_task(expires=4)
def reconcile() -> None:
    """Activations are finished by it too: beat calls it every two seconds, activating at once."""
    from adapters import placement

    placement.reconcile()


@shared_task(expires=20)
def requeue_stale() -> None:
    from adapters import validate

    validate.requeue_stale()


@shared_task(expires=500)
def sweep_trash() -> None:
    from adapters import storage

    storage.sweep_trash(storage.TRASH_MAX_AGE_S)


@shared_task(expires=3500)
def sweep_blobs() -> None:
    from adapters import storage

    storage.sweep_blobs(storage.SWEEP_MIN_AGE_S)


@shared_task(expires=50)
def expire_uploads() -> None:
    from adapters import uploads

    uploads.expire_uploads()


@shared_task(expires=9)
def settle_orphans() -> None:
    from adapters.engine_usage import attempts_of
    from tenants import orphans

    orphans.settle_orphans(attempts_of)


# The sealed token comes with the message only; ids are in the row.
@shared_task
def run_import(tenant_id: int, import_id: int, sealed: str) -> None:
    from adapters import imports

    imports.run_import(tenant_id, import_id, sealed)


@shared_task(expires=20)
def requeue_imports() -> None:
    from adapters import imports

    imports.requeue_imports()


# Queued again as long as it waits for its turn.
@shared_task(expires=10)
def evaluate(tenant_id: int, evaluation_id: int) -> None:
    from adapters import evaluation

    evaluation.run_evaluation(tenant_id, evaluation_id)


@shared_task(expires=4)
def dispatch_evaluations() -> None:
    from adapters import evaluation

    evaluation.dispatch_evaluations()
