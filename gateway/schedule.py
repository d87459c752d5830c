"""Background work: which worker takes it, and how often beat asks for it."""

from typing import Any

from kombu import Queue

# Healing has a worker of its own, so that no number of checks, imports and evaluations holds it up.
# A worker that is told no --queues takes both.
QUEUES = [Queue("celery"), Queue("healing")]
ROUTES = {
    "adapters.tasks.reconcile": {"queue": "healing"},
    "adapters.tasks.requeue_stale": {"queue": "healing"},
    "adapters.tasks.requeue_imports": {"queue": "healing"},
    "adapters.tasks.settle_orphans": {"queue": "healing"},
}
BEAT: dict[str, dict[str, Any]] = {
    "reconcile-placement": {"task": "adapters.tasks.reconcile", "schedule": 2.0},
    "requeue-stale-versions": {"task": "adapters.tasks.requeue_stale", "schedule": 5.0},
    "sweep-trash": {"task": "adapters.tasks.sweep_trash", "schedule": 600.0},
    "sweep-blobs": {"task": "adapters.tasks.sweep_blobs", "schedule": 3600.0},
    "expire-uploads": {"task": "adapters.tasks.expire_uploads", "schedule": 60.0},
    "requeue-stale-imports": {"task": "adapters.tasks.requeue_imports", "schedule": 10.0},
    "dispatch-evaluations": {"task": "adapters.tasks.dispatch_evaluations", "schedule": 2.0},
    "settle-orphaned-usage": {"task": "adapters.tasks.settle_orphans", "schedule": 10.0},
}
