"""SQLite's log is written back beside the requests. A real file, as `make run` opens it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connections
from django.db.backends.sqlite3.base import DatabaseWrapper

from gateway import database
from gateway.settings import SQLITE_OPTIONS

# The fixture opens a database of its own; the mark lets it.
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "house.sqlite3"
    given = connections["default"].settings_dict | {"NAME": str(path), "OPTIONS": SQLITE_OPTIONS}
    wrapper = DatabaseWrapper(given)
    wrapper.inc_thread_sharing()
    monkeypatch.setattr(database, "connection", wrapper)
    yield path
    wrapper.close()


async def test_the_log_does_not_grow(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "CHECKPOINT_INTERVAL_S", 0.01)
    log = file.with_name(file.name + "-wal")
    beside = asyncio.create_task(database.checkpoint_forever(database.in_thread))
    for _ in range(60):
        await database.in_thread(write)
        await asyncio.sleep(0.02)
    beside.cancel()
    # 12 MB were written, less than makes SQLite itself write the log back.
    assert 0 < log.stat().st_size < 4_000_000


def write() -> None:
    with database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS filler (bytes BLOB)")
        cursor.execute("INSERT INTO filler VALUES (zeroblob(200000))")
