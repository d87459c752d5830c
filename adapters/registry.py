"""Which replicas there are: those of REPLICA_URLS, and those that announced themselves.

One that announced itself stays as long as it answers, and FORGET_AFTER its last answer or
announcement. Whoever has REPLICA_TOKEN is trusted with every tenant's prompts.
"""

import hmac
import logging
import re
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from adapters import tasks
from adapters.dialects import DIALECTS, split_url
from adapters.models import FleetEvent, Replica
from tenants.errors import ApiError

log = logging.getLogger(__name__)

FORGET_AFTER = timedelta(seconds=60)
MAX_REPLICAS = 1000
# A name or an address; no space, quote or control character gets into logs and metrics.
HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")
ACTOR = "the replica itself"


def configured() -> dict[str, str]:
    """URL to the name of its dialect, of REPLICA_URLS."""
    return {url: dialect.name for dialect, url in map(split_url, settings.REPLICA_URLS)}


def sync_replicas() -> list[Replica]:
    """Rows for exactly the replicas there are; placements of a removed one go with it."""
    wanted, now = configured(), timezone.now()
    for row in Replica.objects.all():
        # Another engine at the same address is another replica: nothing of the former is there.
        if wanted.get(row.url, row.dialect) != row.dialect:
            row.delete()
        elif row.url not in wanted and not is_remembered(row, now):
            _forget(row)
    known = set(Replica.objects.values_list("url", flat=True))
    missing = [Replica(url=u, dialect=name) for u, name in wanted.items() if u not in known]
    Replica.objects.bulk_create(missing, ignore_conflicts=True)
    return list(Replica.objects.all())


def is_remembered(row: Replica, now: datetime) -> bool:
    if row.announced_at is None:
        return False
    return max(row.announced_at, row.last_seen or row.announced_at) > now - FORGET_AFTER


def _forget(row: Replica) -> None:
    if row.announced_at is not None:
        log.warning("replica %s is forgotten: it neither answers nor announces itself", row.url)
        FleetEvent.objects.create(actor="grafthouse", action="replica.forgotten", target=row.url)
    row.delete()


def fleet() -> dict[str, tuple[str, bool]]:
    """URL to dialect and whether it drains, of every replica there is."""
    rows = Replica.objects.values_list("url", "dialect", "draining_since")
    found = {url: (dialect, since is not None) for url, dialect, since in rows}
    return {url: (name, False) for url, name in configured().items()} | found


def require_token(given: str) -> None:
    """Raises ApiError 403 where announcements are not taken, 401 for a wrong token."""
    if not settings.REPLICA_TOKEN:
        message = "This house takes no announcements of replicas: REPLICA_TOKEN is not set."
        raise ApiError("announcements_off", 403, message)
    if not hmac.compare_digest(given.encode(), settings.REPLICA_TOKEN.encode()):
        message = "Expected REPLICA_TOKEN as 'Authorization: Bearer …'."
        raise ApiError(
            "invalid_replica_token", 401, message, headers={"WWW-Authenticate": "Bearer"}
        )


def register(url: str, dialect: str) -> Replica:
    """A replica says that it is there, as often as it likes. Raises ApiError 400 and 409."""
    url = checked_url(url)
    if dialect not in DIALECTS:
        raise invalid("engine", f"expected one of {', '.join(DIALECTS)}, got {dialect[:40]!r}")
    if configured().get(url, dialect) != dialect:
        raise conflict(f"REPLICA_URLS says that {url} is {configured()[url]}.")
    with transaction.atomic():
        Replica.objects.filter(url=url).exclude(dialect=dialect).delete()
        if Replica.objects.exclude(url=url).count() >= MAX_REPLICAS:
            raise conflict(f"There are {MAX_REPLICAS} replicas already.")
        now = timezone.now()
        row, is_new = Replica.objects.update_or_create(
            url=url, defaults={"announced_at": now}, create_defaults=fresh(dialect, now)
        )
        if is_new:
            log.info("replica %s (%s) announced itself", url, dialect)
            FleetEvent.objects.create(actor=ACTOR, action="replica.announced", target=url)
            tasks.queue(tasks.reconcile)
    return row


def fresh(dialect: str, now: datetime) -> dict[str, object]:
    return {"dialect": dialect, "announced_at": now}


def checked_url(url: str) -> str:
    """scheme://host[:port] and nothing else. Raises ApiError 400."""
    plain = url.rstrip("/")
    try:
        parts = urlsplit(plain)
        port = parts.port
    except ValueError as error:
        raise invalid("url", f"{error}") from error
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    expected = f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "")
    is_host = HOST.fullmatch(parts.hostname or "")
    if parts.scheme not in ("http", "https") or not is_host or plain.lower() != expected:
        raise invalid("url", f"expected http(s)://host:port, got {url[:200]!r}")
    if len(plain) > 200:
        raise invalid("url", "expected 200 characters at most")
    return expected


def invalid(field: str, message: str) -> ApiError:
    return ApiError("invalid_replica", 400, f"{field}: {message}.", param=field)


def conflict(message: str) -> ApiError:
    return ApiError("replica_conflict", 409, message)
