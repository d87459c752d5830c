"""The statements that every request costs, each for many rows at once.

Written out, because they are the hot path: the ORM takes 85 µs to make and compile an insert and
1 ms for a settlement. One statement, because a thread that asks row by row waits for the
interpreter's lock at each. They go round tenants.scope: what is closed names its tenant itself.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from django.db import connection
from django.db.models import Field

from tenants.models import UsageRecord, UsageStatus

ORPHANED = "orphaned"
TABLE = UsageRecord._meta.db_table
# SQLite takes 32,766 parameters a statement.
MAX_ROWS = 500
# What the model would fill in. The database has no defaults of its own.
OPEN: dict[str, Any] = {"status": UsageStatus.OPEN.value, "error_code": "", "cost": 0}
ADAPTED = {"cost", "started_at", "heartbeat_at", "ended_at"}
# Fields to the type of their column, which NULLs in VALUES do not have.
KEYS = {"request_id": "text", "tenant": "bigint"}
TOUCHED = {"prompt_tokens": "integer", "cached_tokens": "integer", "completion_tokens": "integer"}
SETTLED = {
    "status": "text",
    "prompt_tokens": "integer",
    "cached_tokens": "integer",
    "completion_tokens": "integer",
    "cost": "bigint",
    "error_code": "text",
    "replica": "text",
}


def insert_rows(rows: Iterable[Mapping[str, Any]]) -> None:
    """Field names to values; a request id that is there already keeps its row."""
    full: list[dict[str, Any]] = [{**OPEN, **row} for row in rows]
    for part in parts(full):
        names = tuple(part[0])
        execute(insertion(names, len(part)), prepared(names, part))


@lru_cache(maxsize=64)
def insertion(names: tuple[str, ...], num_rows: int) -> str:
    columns = ", ".join(column(name) for name in names)
    return (
        f"INSERT INTO {TABLE} ({columns}) VALUES {places(names, num_rows)} "
        "ON CONFLICT (request_id) DO NOTHING"
    )


def touch_rows(rows: Iterable[Mapping[str, Any]], heartbeat_at: Any) -> None:
    """request_id and TOUCHED to values, of open rows; what is None stays as it was."""
    names = ("request_id", *TOUCHED)
    assignments = ", ".join(
        f"{column(name)} = COALESCE({value(number, TOUCHED[name])}, {TABLE}.{column(name)})"
        for number, name in enumerate(TOUCHED, start=2)
    )
    for part in parts(list(rows)):
        execute(
            f"UPDATE {TABLE} SET {assignments}, heartbeat_at = %s "
            f"FROM (VALUES {places(names, len(part))}) AS given "
            f"WHERE {TABLE}.request_id = given.column1 AND {TABLE}.status = %s",
            [
                field("heartbeat_at").get_db_prep_save(heartbeat_at, connection),
                *prepared(names, part),
                UsageStatus.OPEN.value,
            ],
        )


def settle_rows(rows: Iterable[Mapping[str, Any]], ended_at: Any) -> int:
    """KEYS and SETTLED to values. How many closed: what was open, or closed by the sweeper."""
    names = (*KEYS, *SETTLED)
    assignments = ", ".join(
        f"{column(name)} = {value(number, SETTLED[name])}"
        for number, name in enumerate(SETTLED, start=1 + len(KEYS))
    )
    return sum(
        execute(
            f"UPDATE {TABLE} SET {assignments}, ended_at = %s "
            f"FROM (VALUES {places(names, len(part))}) AS given "
            f"WHERE {TABLE}.request_id = given.column1 AND {TABLE}.tenant_id = given.column2 "
            f"AND ({TABLE}.status = %s OR {TABLE}.status = %s AND {TABLE}.error_code = %s)",
            [
                field("ended_at").get_db_prep_save(ended_at, connection),
                *prepared(names, part),
                *(UsageStatus.OPEN.value, UsageStatus.FAILED.value, ORPHANED),
            ],
        )
        for part in parts(list(rows))
    )


def value(number: int, kind: str) -> str:
    return f"CAST(given.column{number} AS {kind})"


def parts(rows: list[Any]) -> Iterable[list[Any]]:
    return (rows[start : start + MAX_ROWS] for start in range(0, len(rows), MAX_ROWS))


def places(names: tuple[str, ...], num_rows: int) -> str:
    row = f"({', '.join(['%s'] * len(names))})"
    return ", ".join([row] * num_rows)


def prepared(names: tuple[str, ...], rows: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Values as this database takes them. Text and whole numbers are taken as they are."""
    adapt = {name: field(name).get_db_prep_save for name in names if name in ADAPTED}
    return [
        adapt[name](row[name], connection) if name in adapt else row[name]
        for row in rows
        for name in names
    ]


def column(name: str) -> str:
    return str(field(name).column)


def field(name: str) -> "Field[Any, Any]":
    found = UsageRecord._meta.get_field(name)
    assert isinstance(found, Field)
    return found


def execute(statement: str, values: list[Any]) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return int(cursor.rowcount)
