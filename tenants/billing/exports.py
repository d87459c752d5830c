"""The ledger as a file, streamed: CSV or JSON Lines, oldest first, the same bytes for a closed
period.

Open rows are left out: what they cost is not known yet.
"""

import csv
import io
import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

from channels.db import database_sync_to_async  # type: ignore[import-untyped]
from django.db.models import Q

from tenants.billing.periods import Period
from tenants.billing.summary import rows_of
from tenants.models import UsageRecord, UsageStatus
from tenants.money import plain
from tenants.scope import tenant_scope

NUM_ROWS_PER_CHUNK = 1000
# A spreadsheet takes a cell that begins so for a formula.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")

COLUMNS = (
    "request_id",
    "started_at",
    "ended_at",
    "status",
    "error_code",
    "endpoint",
    "model",
    "adapter",
    "version",
    "digest",
    "key",
    "user",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "cost",
)


def as_record(row: UsageRecord) -> dict[str, Any]:
    """None is unknown or none; moments are ISO 8601 in UTC; the cost is a decimal string."""
    values = {name: getattr(row, name) for name in COLUMNS if name not in ("key", "user")}
    values["key"] = row.api_key.public_id if row.api_key else None
    values["user"] = row.user.get_username() if row.user else None
    values["started_at"], values["ended_at"] = moment(row.started_at), moment(row.ended_at)
    values["cost"] = plain(row.cost)
    return {name: values[name] for name in COLUMNS}


def moment(at: datetime | None) -> str | None:
    return None if at is None else at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def csv_lines(records: list[dict[str, Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerows([cell(record[name]) for name in COLUMNS] for record in records)
    return buffer.getvalue()


def cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def json_lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)


CSV_HEADER = ",".join(COLUMNS) + "\r\n"
# format → content type, what comes first, and what makes lines of records.
FORMATS: dict[str, tuple[str, str, Callable[[list[dict[str, Any]]], str]]] = {
    "csv": ("text/csv; charset=utf-8", CSV_HEADER, csv_lines),
    "jsonl": ("application/x-ndjson", "", json_lines),
}


async def export(tenant_id: int, period: Period, format_name: str) -> AsyncIterator[bytes]:
    """The file in pieces.

    It opens the tenant's scope itself, for each piece: a stream outlives its view.
    """
    _, header, lines_of = FORMATS[format_name]
    if header:
        yield header.encode()
    last: UsageRecord | None = None
    while rows := await database_sync_to_async(read_chunk)(tenant_id, period, last):
        yield lines_of([as_record(row) for row in rows]).encode()
        last = rows[-1]


def read_chunk(tenant_id: int, period: Period, last: UsageRecord | None) -> list[UsageRecord]:
    with tenant_scope(tenant_id):
        rows = rows_of(period).exclude(status=UsageStatus.OPEN)
        if last is not None:
            same_moment = Q(started_at=last.started_at, id__gt=last.id)
            rows = rows.filter(Q(started_at__gt=last.started_at) | same_moment)
        rows = rows.select_related("api_key", "user").order_by("started_at", "id")
        return list(rows[:NUM_ROWS_PER_CHUNK])
