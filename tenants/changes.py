"""The change log: whose rows changed among those that keys, models and prices are looked up in.

The database writes it itself (tenants.change_triggers), so whatever changes a row is in it: a view,
update() past every hook, a migration, psql. It only grows, and nobody waits for another's row. What
was asked of those rows stays true for as long as the log names nobody.
"""

import time
from dataclasses import dataclass

from django.db import connection, models

# Whoever has not read for so long begins anew; rows are kept longer.
MAX_POSITION_AGE_S = 600.0


class Change(models.Model):
    """tenant_id: whose rows changed; null: everybody's. xact: PostgreSQL's transaction.

    No foreign key: it would lock the tenant's row, which log rows outlive.
    """

    tenant_id = models.BigIntegerField(null=True)
    xact = models.BigIntegerField(null=True, db_index=True)

    def __str__(self) -> str:
        return f"{self.id}: {self.tenant_id or 'everybody'}"


@dataclass(frozen=True)
class Position:
    """Up to where the log was read. Every row below the horizon was there to be read; seen: ids of
    rows above it that were. taken_at: seconds since 1970.
    """

    horizon: int
    seen: frozenset[int]
    taken_at: float


@dataclass(frozen=True)
class Changes:
    """tenant_ids: whose rows changed; None among them: everybody's, or nobody can say whose."""

    position: Position
    tenant_ids: frozenset[int | None]


# A sequence's order is not the order of commits: a row with a low id may come after one with a high
# one. So the horizon is the oldest transaction that still ran, of the statement's own snapshot:
# what is not to be seen yet is of that one or a later, and is read from there on the next time.
POSTGRESQL = """
    SELECT horizon, change.id, change.tenant_id, change.xact >= horizon
    FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS horizon) AS now
    LEFT JOIN tenants_change AS change ON change.xact >= %s
"""
# One writer at a time: ids are in the order of commits.
SQLITE = """
    SELECT horizon, change.id, change.tenant_id, 0
    FROM (
        SELECT COALESCE(MAX(seq), 0) + 1 AS horizon FROM sqlite_sequence
        WHERE name = 'tenants_change'
    )
    LEFT JOIN tenants_change AS change ON change.id >= %s
"""


def changes_since(position: Position | None) -> Changes:
    """What became visible after a position, up to now. None, or one that is too old or of another
    life of this database (a backup, a stand-by): everybody's.
    """
    now = time.time()
    with connection.cursor() as cursor:
        statement = SQLITE if connection.vendor == "sqlite" else POSTGRESQL
        cursor.execute(statement, [None if position is None else position.horizon])
        rows = cursor.fetchall()
    horizon = rows[0][0]
    seen = frozenset(row_id for _, row_id, _, is_above in rows if is_above)
    here = Position(horizon, seen, now)
    if position is None or horizon < position.horizon:
        return Changes(here, frozenset({None}))
    if now - position.taken_at > MAX_POSITION_AGE_S:
        return Changes(here, frozenset({None}))
    new = {
        tenant_id
        for _, row_id, tenant_id, _ in rows
        if row_id is not None and row_id not in position.seen
    }
    return Changes(here, frozenset(new))


def forget_before(position: Position) -> None:
    """What was read up to a position, in which nobody goes on any more."""
    is_sqlite = connection.vendor == "sqlite"
    place = {"id__lt" if is_sqlite else "xact__lt": position.horizon}
    Change.objects.filter(**place).delete()
