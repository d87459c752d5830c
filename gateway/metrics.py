"""Prometheus collectors of a web process.

Labels are bounded by construction: routes, status classes, error codes of ours, configured
replicas. There is no tenant or model label: a thousand tenants would make a thousand series each;
per-tenant figures are in the ledger. Several web processes behind one port share a folder,
PROMETHEUS_MULTIPROC_DIR, and any of them answers for all.
"""

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from django.conf import settings
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gateway.router import Snapshot
from tenants.models import BudgetKind
from tenants.notices import PERCENTS

if settings.PROMETHEUS_MULTIPROC_DIR:
    Path(settings.PROMETHEUS_MULTIPROC_DIR).mkdir(parents=True, exist_ok=True)
    # Of a process that had this id in a former life of the container.
    mark_process_dead(os.getpid())  # type: ignore[no-untyped-call]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

REQUESTS = Counter(
    "grafthouse_requests_total", "Requests by route and status class.", ["route", "status"]
)
FIRST_TOKEN = Histogram(
    "grafthouse_time_to_first_token_seconds",
    "From the request's arrival to its first token.",
    ["route"],
    buckets=SECONDS,
)
DURATION = Histogram(
    "grafthouse_request_duration_seconds",
    "From arrival to settlement.",
    ["route"],
    buckets=SECONDS,
)
TOKENS = Counter("grafthouse_tokens_total", "Tokens of settled requests.", ["kind"])
LOST_TOKENS = Counter(
    "grafthouse_lost_tokens_total",
    "Tokens of failed attempts and requests of which no client got anything: billed to nobody.",
    ["kind"],
)
OPEN_STREAMS = Gauge(
    "grafthouse_open_streams", "Generations running now.", multiprocess_mode="livesum"
)
OPEN_SOCKETS = Gauge(
    "grafthouse_open_websockets", "WebSockets open now.", ["kind"], multiprocess_mode="livesum"
)
DROPPED = Counter(
    "grafthouse_connections_dropped_total",
    "Connections cut: late (no whole head in time), evicted (for a new one), stalled, refused.",
    ["reason"],
)
REFUSED = Counter(
    "grafthouse_refused_total",
    "Requests refused at admission, by code and type (a 429's type: requests, tokens, …).",
    ["code", "type"],
)
OUTCOMES = Counter("grafthouse_generations_total", "Settled generations by outcome.", ["status"])
RETRIES = Counter("grafthouse_upstream_retries_total", "Requests moved to another replica.")
MISMATCHES = Counter(
    "grafthouse_digest_mismatches_total", "Answers refused: a replica used another version."
)
REPLICA_UP = Gauge(
    "grafthouse_replica_up", "1: ready.", ["replica"], multiprocess_mode="livemostrecent"
)
REPLICA_LOAD = Gauge(
    "grafthouse_replica_load",
    "Requests running and waiting there.",
    ["replica"],
    multiprocess_mode="livemostrecent",
)
REPLICA_BREAKER = Gauge(
    "grafthouse_replica_breaker",
    "0: closed, 1: half-open, 2: open, no new requests.",
    ["replica"],
    multiprocess_mode="livemostrecent",
)
REPLICA_DRAINING = Gauge(
    "grafthouse_replica_draining",
    "1: by an operator's word it takes nothing new.",
    ["replica"],
    multiprocess_mode="livemostrecent",
)
LOSSES = Counter(
    "grafthouse_replica_losses_total",
    "Requests that a replica did not end: connect, timeout, cut, malformed.",
    ["replica", "kind"],
)
INVALIDATION_DELAY = Histogram(
    "grafthouse_invalidation_delay_seconds",
    "From the commit of a change to the drop of what this process keeps of it, by push.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
INVALIDATIONS_FOLLOWED = Gauge(
    "grafthouse_invalidations_followed",
    "1: pushes are received; 0: a change acts once the change log is polled, within a second.",
    multiprocess_mode="livemin",
)
BACKSTOPS = Counter(
    "grafthouse_cache_backstops_total",
    "Kept answers that had changed without a push, as the change log or a later look-up said.",
    ["cache"],
)
BUDGET_NOTICES = Counter(
    "grafthouse_budget_notices_total",
    "Times that 50, 80 or 100 % of a month's limit was reached, each said once.",
    ["kind", "percent"],
)
# A series that begins with 1 never increased: an alert would miss the first of each.
for _kind in BudgetKind.values:
    for _percent in PERCENTS:
        BUDGET_NOTICES.labels(_kind, str(_percent))
TASKS_WAITING = Gauge(
    "grafthouse_tasks_waiting",
    "Background tasks that no worker has taken yet; NaN: the store is away.",
    ["queue"],
    multiprocess_mode="livemostrecent",
)
WRITER_QUEUE = Gauge(
    "grafthouse_usage_writer_queue",
    "Usage writes not yet in the database.",
    multiprocess_mode="livesum",
)
WRITER_FAILURES = Counter("grafthouse_usage_writer_failures_total", "Batches the database refused.")


ACCESS_LOG_DROPPED = Counter(
    "grafthouse_access_log_dropped_total",
    "Lines of the access log that nobody took in time.",
)


def observe_replica(snapshot: Snapshot) -> None:
    REPLICA_UP.labels(snapshot.url).set(snapshot.is_ready)
    REPLICA_LOAD.labels(snapshot.url).set(snapshot.load)
    REPLICA_DRAINING.labels(snapshot.url).set(snapshot.is_draining)


class OfFleet(Collector):
    """All but the gauges of replicas that left the fleet: their last values are no news, and would
    be alerts for ever. The files that several processes share have no way to take them out.
    """

    def __init__(self, whole: Collector, fleet: Collection[str]) -> None:
        self._whole, self._fleet = whole, fleet

    def collect(self) -> Iterator[Metric]:
        for metric in self._whole.collect():
            if metric.type == "gauge":
                metric.samples = [one for one in metric.samples if self._is_news(one)]
            yield metric

    def _is_news(self, sample: Sample) -> bool:
        url = sample.labels.get("replica")
        return url is None or url in self._fleet


def render(fleet: Collection[str]) -> tuple[str, bytes]:
    """(content type, exposition text) of this process, or of all workers in multiprocess mode.

    fleet: the URLs of the replicas that there are.
    """
    if not settings.PROMETHEUS_MULTIPROC_DIR:
        return CONTENT_TYPE_LATEST, generate_latest(OfFleet(REGISTRY, fleet))
    forget_dead(Path(settings.PROMETHEUS_MULTIPROC_DIR))
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return CONTENT_TYPE_LATEST, generate_latest(OfFleet(registry, fleet))


def forget_dead(folder: Path) -> None:
    """The gauges of killed workers: their streams are over. What they counted stays."""
    for path in folder.glob("gauge_live*.db"):
        number = path.stem.rpartition("_")[2]
        if not Path("/proc", number).exists():
            # Another worker may be asked at the same time.
            with contextlib.suppress(FileNotFoundError):
                mark_process_dead(int(number))  # type: ignore[no-untyped-call]
