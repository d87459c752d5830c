"""Once all is quiet: are rows, bytes and audit in step? Run beside the house, with its settings.

    VAR_DIR=… REDIS_URL=… python -m tests.e2e.chaos.books <Unix time of the last request>

Prints {"faults": […], "active": [[name, number, from, to], …], …} as JSON.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import django
from django.utils import timezone

# Not audited: the claim of a check, and its return, are work and no change of a tenant's.
AS_UPLOADED = {"uploaded", "validating"}
SERVED = {"ready", "activating", "active", "retired"}
ENDS = {"ready", "active", "retired", "rejected", "failed"}
WEIGHTS_FILE = "adapter_model.safetensors"


def main() -> None:
    from tenants.scope import unscoped

    with unscoped():
        faults = [*row_faults(), *placement_faults(), *blob_faults(), *swept_faults()]
        faults += [*audit_faults(), *act_faults(), *usage_faults(float(sys.argv[1]))]
        json.dump({"faults": faults, "active": active_times(), **figures()}, sys.stdout)


def row_faults() -> list[str]:
    from adapters.models import Adapter, Upload

    faults = [fault for version in versions() for fault in version_faults(version)]
    retired = Adapter.objects.filter(retired_at__isnull=False, active_version__isnull=False)
    faults += [f"{adapter} is retired and has an active version" for adapter in retired]
    pending = Upload.objects.filter(status="pending")
    return [*faults, *(f"{upload.public_id} is still open" for upload in pending)]


def version_faults(version: Any) -> Iterator[str]:
    label = f"{version.adapter}@{version.number}"
    if version.state not in ENDS:
        yield f"{label} is still {version.state}"
    if version.state == "failed" and not version.error:
        yield f"{label} failed without a reason"
    is_active = version.adapter.active_version_id == version.id
    if is_active != (version.state == "active"):
        yield f"{label} is {version.state}, the adapter's pointer says {is_active}"
    if version.quarantine and version.state != "failed":
        yield f"{label} is {version.state} and keeps a quarantine"


def placement_faults() -> list[str]:
    from adapters.models import Placement
    from adapters.placement import needed_digests

    unneeded = Placement.objects.exclude(digest__in=needed_digests()).exclude(state="orphaned")
    return [f"nothing needs {row}" for row in unneeded]


def blob_faults() -> Iterator[str]:
    """Before anything is swept: what was published is whole."""
    from adapters import storage
    from inference.adapter_format import digest

    for one in {version.digest for version in versions() if version.state in SERVED}:
        folder = storage.blob_dir(one)
        if not folder.is_dir():
            yield f"the bytes of {one} are gone"
        elif digest((folder / storage.CONFIG_FILE).read_bytes(), folder / WEIGHTS_FILE) != one:
            yield f"the bytes of {one} are others"


def swept_faults() -> list[str]:
    """After it: nothing is there that no row names."""
    from adapters import storage
    from adapters.models import Placement

    for sweep in (storage.sweep_trash, storage.sweep_blobs, storage.sweep_quarantine):
        sweep(0)
    kept = {path.name for path in storage.store_dir().glob(f"{'[0-9a-f]' * 2}/*")}
    placed = set(Placement.objects.values_list("digest", flat=True))
    faults = [f"{one} is nobody's" for one in kept - placed - {one.digest for one in versions()}]
    waiting = {one.quarantine for one in versions()}
    for part in ("quarantine", "trash"):
        left = {path.name for path in (storage.store_dir() / part).glob("*")} - waiting
        faults += [f"after sweeping, {part}/{one} is there" for one in left]
    return faults


def audit_faults() -> list[str]:
    """Each version's audit rows are a chain that begins with its upload and ends where it is."""
    from adapters.models import Adapter
    from tenants.models import AuditEvent

    faults, ends = [], dict[str, str]()
    for row in AuditEvent.objects.filter(action__startswith="version.").order_by("id"):
        before, after = stage(row)
        if not same(ends.get(row.target), before):
            faults.append(f"{row.target}: {ends.get(row.target)}, then {before} → {after}")
        ends[row.target] = after
    states = {f"{one.adapter}@{one.number}": one.state for one in versions()}
    for adapter in Adapter.objects.all():
        for label in (f"{adapter}@{n + 1}" for n in range(adapter.last_number)):
            state = states.pop(label, "deleted")
            if not same(ends.get(label), state):
                faults.append(f"{label} is {state}, by its audit rows {ends.get(label)}")
    return faults + [f"{label} has a number that was never given" for label in states]


def stage(row: Any) -> tuple[str | None, str]:
    """Before and after, by one audit row."""
    if row.action == "version.deleted":
        return None, "deleted"
    if row.before is None:
        return "", "uploaded"
    return row.before["state"], row.after["state"]


def same(last: str | None, before: str | None) -> bool:
    """before: None is any. A version begins with nothing."""
    if before is None:
        return last is not None
    return (last or "") == before or {last, before} <= AS_UPLOADED


def act_faults() -> list[str]:
    """Of uploads in parts, and of adapters: one row an act."""
    from adapters.models import Adapter, Upload
    from tenants.models import AuditEvent

    faults = []
    counted = Counter(AuditEvent.objects.values_list("action", "target"))
    for upload in Upload.objects.all():
        for status in ("opened", upload.status):
            if (number := counted[f"upload.{status}", upload.public_id]) != 1:
                faults.append(f"{upload.public_id} {upload.status}: {number} rows of {status}")
    made, gone = (
        Counter({name: n for (action, name), n in counted.items() if action == f"adapter.{verb}"})
        for verb in ("created", "deleted")
    )
    if made - gone != (there := Counter(Adapter.objects.values_list("name", flat=True))):
        faults.append(f"adapters made {made}, deleted {gone}, there {there}")
    return faults


def versions() -> Any:
    from adapters.models import AdapterVersion

    return AdapterVersion.objects.select_related("adapter")


def usage_faults(quiet_since: float) -> list[str]:
    """Open is only what a dead process left; that is closed once it is old enough."""
    from adapters.engine_usage import attempts_of
    from tenants.models import UsageRecord
    from tenants.orphans import ORPHAN_AFTER, settle_orphans

    since = datetime.fromtimestamp(quiet_since, UTC)
    rows = UsageRecord.objects.filter(status="open")
    faults = [f"usage row {one} is kept open" for one in rows.filter(heartbeat_at__gt=since)]
    settle_orphans(attempts_of, timezone.now() + ORPHAN_AFTER)
    return faults + [f"usage row {one} is still open" for one in rows.all()]


def active_times() -> list[tuple[str, int, float, float]]:
    """By the audit: (adapter, number, since, until), Unix seconds; infinity: it is."""
    from tenants.models import AuditEvent

    begun: dict[str, float] = {}
    times: list[tuple[str, int, float, float]] = []
    for row in AuditEvent.objects.order_by("id"):
        at = row.at.timestamp()
        if row.action == "version.active":
            begun[row.target] = at
        elif row.action == "adapter.deleted":
            over = [label for label in begun if label.rpartition("@")[0] == row.target]
            times += [entry(label, begun.pop(label), at) for label in over]
        elif row.target in begun and (row.before or {}).get("state") == "active":
            times.append(entry(row.target, begun.pop(row.target), at))
    return [*times, *(entry(label, since, float("inf")) for label, since in begun.items())]


def entry(label: str, since: float, until: float) -> tuple[str, int, float, float]:
    name, _, number = label.rpartition("@")
    return name, int(number), since, until


def figures() -> dict[str, Any]:
    from tenants.models import UsageRecord

    return {
        "states": Counter(one.state for one in versions()),
        "failed": {
            f"{one.adapter}@{one.number}": one.error for one in versions() if one.state == "failed"
        },
        "usage": Counter(UsageRecord.objects.values_list("status", flat=True)),
    }


if __name__ == "__main__":
    os.environ["DJANGO_SETTINGS_MODULE"] = "gateway.settings"
    django.setup()
    main()
