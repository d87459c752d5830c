"""The triggers that write the change log, for migrations, on SQLite and on PostgreSQL.

What a look-up reads has to be watched: tests/tenants/test_changes.py and its like in adapters
change each column and find those that are not. SQLite drops triggers with their table, and Django
makes a table anew for many a change: the migration that does so calls watch() again.
"""

from dataclasses import dataclass

from django.db.backends.base.schema import BaseDatabaseSchemaEditor

# SECURITY DEFINER: who may change a key need not be allowed the log. Everything in it is named in
# full, so that no search path leads elsewhere. A row that moves to another tenant is everybody's.
FUNCTION = """
DO $do$ BEGIN EXECUTE format($format$
    CREATE OR REPLACE FUNCTION %1$I.tenants_note_change() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
    DECLARE
        before text := to_jsonb(OLD) ->> TG_ARGV[0];
        after text := to_jsonb(NEW) ->> TG_ARGV[0];
        tenant text := COALESCE(after, before);
    BEGIN
        INSERT INTO %1$I.tenants_change (tenant_id, xact) VALUES (
            CASE WHEN COALESCE(before, after) = tenant THEN tenant::bigint END,
            pg_current_xact_id()::text::bigint
        );
        RETURN NULL;
    END $body$;
    REVOKE EXECUTE ON FUNCTION %1$I.tenants_note_change() FROM PUBLIC
$format$, current_schema()); END $do$
"""
NO_FUNCTION = "DROP FUNCTION tenants_note_change()"


@dataclass(frozen=True)
class Watched:
    """A table, and its columns that look-ups read. tenant: the column that says whose a row is;
    None: its rows are everybody's. is_new_read: whether a new row can change what was looked up.
    """

    table: str
    columns: tuple[str, ...]
    tenant: str | None = "tenant_id"
    is_new_read: bool = True


def make_function(schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Before the first watch()."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(FUNCTION, None)


def drop_function(schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(NO_FUNCTION, None)


def watch(schema_editor: BaseDatabaseSchemaEditor, watched: Watched) -> None:
    """Also one that is watched already. Locks the table for an instant, outside a transaction."""
    make = _on_sqlite if schema_editor.connection.vendor == "sqlite" else _on_postgresql
    for statement in make(watched):
        schema_editor.execute(statement, None)


def unwatch(schema_editor: BaseDatabaseSchemaEditor, watched: Watched) -> None:
    is_sqlite = schema_editor.connection.vendor == "sqlite"
    for event in ("insert", "update", "delete", "truncate"):
        place = "" if is_sqlite else f" ON {watched.table}"
        schema_editor.execute(f"DROP TRIGGER IF EXISTS {_name(watched, event)}{place}", None)


def _name(watched: Watched, event: str) -> str:
    return f"{watched.table}_{event}_noted"


def _events(watched: Watched) -> tuple[str, ...]:
    return ("insert", "update", "delete") if watched.is_new_read else ("update", "delete")


def _on_sqlite(watched: Watched) -> list[str]:
    tenant = watched.tenant
    whose = {
        "insert": f"NEW.{tenant}",
        "update": f"CASE WHEN OLD.{tenant} = NEW.{tenant} THEN NEW.{tenant} END",
        "delete": f"OLD.{tenant}",
    }
    is_other = " OR ".join(f"OLD.{name} IS NOT NEW.{name}" for name in watched.columns)
    when = {"update": f"WHEN {is_other}"}
    return [
        f"CREATE TRIGGER IF NOT EXISTS {_name(watched, event)} AFTER {_verb(watched, event)} "
        f"ON {watched.table} FOR EACH ROW {when.get(event, '')} BEGIN INSERT INTO tenants_change "
        f"(tenant_id) VALUES ({whose[event] if tenant else 'NULL'}); END"
        for event in _events(watched)
    ]


def _on_postgresql(watched: Watched) -> list[str]:
    is_other = " OR ".join(f"OLD.{name} IS DISTINCT FROM NEW.{name}" for name in watched.columns)
    each = dict.fromkeys(_events(watched), "FOR EACH ROW")
    each["update"] += f" WHEN ({is_other})"
    tenant = f"'{watched.tenant}'" if watched.tenant else ""
    return [
        f"CREATE OR REPLACE TRIGGER {_name(watched, event)} AFTER {_verb(watched, event)} "
        f"ON {watched.table} {rows} EXECUTE FUNCTION tenants_note_change({tenant})"
        for event, rows in (each | {"truncate": "FOR EACH STATEMENT"}).items()
    ]


def _verb(watched: Watched, event: str) -> str:
    return f"UPDATE OF {', '.join(watched.columns)}" if event == "update" else event.upper()
